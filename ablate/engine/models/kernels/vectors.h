/* Vectors of LANES numbers, and what the kernels share. The kernels compute in float32 with one thread.
 *
 * A sample, and a row of a matrix, is computed from its values alone, in one order: no result depends on how many
 * others there are.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#ifndef __AVX512F__
#error "vectors of 16 numbers need AVX-512: with shorter ones torch is faster"
#endif

#define LANES 16
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vec load(const float *from) { return *(const vec *)from; }

static inline void store(float *to, vec v) { *(vec *)to = v; }

static inline vec splat(float x) { return (vec){0} + x; }

static inline vec pick(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

static inline long smaller(long a, long b) { return a < b ? a : b; }

/* the first LANES of `left` numbers, and 0 beyond */
static inline vec load_some(const float *from, long left) {
    if (left >= LANES) return load(from);
    vec v = (vec){0};
    memcpy(&v, from, left * sizeof(float));
    return v;
}

static inline void store_some(float *to, vec v, long left) {
    if (left >= LANES) store(to, v);
    else memcpy(to, &v, left * sizeof(float));
}

/* one of the two vectors in which blocks of `size` lanes of a and b change places */
static inline vec exchange(vec a, vec b, int size, int second) {
    ivec index;
    for (int l = 0; l < LANES; l++)
        index[l] = second ? ((l & size) ? LANES + l : l + size) : ((l & size) ? LANES + l - size : l);
    return __builtin_shuffle(a, b, index);
}

static inline void transpose(vec *r) {
#define STAGE(size)                                        \
    for (int a = 0; a < LANES; a++)                        \
        if (!(a & size)) {                                 \
            vec first = exchange(r[a], r[a + size], size, 0); \
            r[a + size] = exchange(r[a], r[a + size], size, 1); \
            r[a] = first;                                  \
        }
    STAGE(8) STAGE(4) STAGE(2) STAGE(1)
#undef STAGE
}

/* to[c] = column c of `rows` <= LANES rows of `from`; lanes without a row are 0 */
static inline void columns(vec *to, const float *from, long rows, long width) {
    if (rows == LANES && width >= LANES) {
        for (long c = 0; c < width; c += LANES) {
            long at = smaller(c, width - LANES); /* the last block may overlap the one before */
            for (int i = 0; i < LANES; i++) to[at + i] = load(from + i * width + at);
            transpose(to + at);
        }
        return;
    }
    float *flat = (float *)to;
    memset(to, 0, width * sizeof(vec));
    for (long i = 0; i < rows; i++)
        for (long c = 0; c < width; c++) flat[c * LANES + i] = from[i * width + c];
}

/* the reverse of columns() */
static inline void put_columns(float *to, const vec *from, long rows, long width) {
    if (rows == LANES && width >= LANES) {
        for (long c = 0; c < width; c += LANES) {
            long at = smaller(c, width - LANES);
            vec t[LANES];
            for (int i = 0; i < LANES; i++) t[i] = from[at + i];
            transpose(t);
            for (int i = 0; i < LANES; i++) store(to + i * width + at, t[i]);
        }
        return;
    }
    const float *flat = (const float *)from;
    for (long i = 0; i < rows; i++)
        for (long c = 0; c < width; c++) to[i * width + c] = flat[c * LANES + i];
}
