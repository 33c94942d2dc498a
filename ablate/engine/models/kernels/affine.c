/* Affine maps x W + b of replicas, with outputs as lanes, and their gradients. */
#include "vectors.h"

/* out[i][n] = b[n] + sum over k of x[i][k] * w[k][n], for `size` rows i and `count` <= 2 vectors w[k] at `at` */
#define ROWS(size, count)                                                                            \
    for (; i + size <= rows; i += size) {                                                            \
        vec sum[size][count];                                                                        \
        for (int g = 0; g < size; g++)                                                               \
            for (int c = 0; c < count; c++) sum[g][c] = b[at + c];                                   \
        for (long k = 0; k < inner; k++)                                                             \
            for (int g = 0; g < size; g++)                                                           \
                for (int c = 0; c < count; c++) sum[g][c] += x[(i + g) * inner + k] * w[k * vectors + at + c]; \
        for (int g = 0; g < size; g++)                                                               \
            for (int c = 0; c < count; c++)                                                          \
                store_some(out + (i + g) * outer + (at + c) * LANES, sum[g][c], outer - (at + c) * LANES); \
    }

/* w is [inner, vectors of LANES], b [vectors], x [rows, inner], out [rows, outer] */
static inline void multiply(const float *x, const vec *w, const vec *b, float *out, long rows, long inner, long outer) {
    long vectors = (outer + LANES - 1) / LANES, at = 0;
    for (; at + 2 <= vectors; at += 2) {
        long i = 0;
        ROWS(8, 2) ROWS(1, 2)
    }
    for (; at < vectors; at++) {
        long i = 0;
        ROWS(8, 1) ROWS(1, 1)
    }
}

/* x [replicas, rows, inner] times weight [replicas, inner, outer] plus bias [replicas, outer] or NULL; replicas of
 * weight and bias are `stride` and `bias_stride` numbers apart. scratch: (inner + 1) * vectors of `outer` numbers. */
void affine(const float *x, const float *weight, const float *bias, float *out, float *scratch, long stride,
            long bias_stride, long replicas, long rows, long inner, long outer) {
    long vectors = (outer + LANES - 1) / LANES;
    vec *b = (vec *)scratch, *w = b + vectors;
    for (long r = 0; r < replicas; r++, x += rows * inner, out += rows * outer, weight += stride) {
        for (long c = 0; c < vectors; c++) {
            b[c] = bias ? load_some(bias + r * bias_stride + c * LANES, outer - c * LANES) : (vec){0};
            for (long k = 0; k < inner; k++)
                w[k * vectors + c] = load_some(weight + k * outer + c * LANES, outer - c * LANES);
        }
        multiply(x, w, b, out, rows, inner, outer);
    }
}

/* The gradient of affine() in x. scratch: (outer + 1) * vectors of `inner` numbers. */
void affine_back_x(const float *grad, const float *weight, float *of_x, float *scratch, long stride, long replicas,
                   long rows, long inner, long outer) {
    long vectors = (inner + LANES - 1) / LANES;
    vec *b = (vec *)scratch, *w = b + vectors;
    memset(b, 0, (outer + 1) * vectors * sizeof(vec));
    for (long r = 0; r < replicas; r++, grad += rows * outer, of_x += rows * inner, weight += stride) {
        for (long n = 0; n < outer; n++)
            for (long k = 0; k < inner; k++) ((float *)w)[n * vectors * LANES + k] = weight[k * outer + n];
        multiply(grad, w, b, of_x, rows, outer, inner);
    }
}

#define CHUNK 256 /* rows: sums of sums round less than one long sum */

/* the number of rows of `grad` from which whole vectors up to column `at` can be read without passing its end */
static inline long whole_rows(long rows, long outer, long at) {
    long left = rows * outer - at;
    return left < 0 ? 0 : smaller(rows, left / outer + 1);
}

/* of_w[k][n] += sum over i of x[i][k] * grad[i][n], for `size` values of k and `count` <= 2 vectors at n */
#define COLUMNS(size, count)                                                                       \
    for (; k + size <= inner; k += size) {                                                         \
        vec sum[size][count], y[count];                                                            \
        long i = 0, whole = whole_rows(rows, outer, n + count * LANES);                            \
        for (int g = 0; g < size; g++)                                                             \
            for (int c = 0; c < count; c++) sum[g][c] = (vec){0};                                  \
        for (; i < whole; i++) {                                                                   \
            for (int c = 0; c < count; c++) y[c] = load(grad + i * outer + n + c * LANES);         \
            for (int g = 0; g < size; g++)                                                         \
                for (int c = 0; c < count; c++) sum[g][c] += x[i * inner + k + g] * y[c];          \
        }                                                                                          \
        for (; i < rows; i++) {                                                                    \
            for (int c = 0; c < count; c++)                                                        \
                y[c] = load_some(grad + i * outer + n + c * LANES, outer - n - c * LANES);         \
            for (int g = 0; g < size; g++)                                                         \
                for (int c = 0; c < count; c++) sum[g][c] += x[i * inner + k + g] * y[c];          \
        }                                                                                          \
        for (int g = 0; g < size; g++)                                                             \
            for (int c = 0; c < count; c++) {                                                      \
                long left = outer - n - c * LANES;                                                 \
                float *to = of_w + (k + g) * outer + n + c * LANES;                                \
                store_some(to, load_some(to, left) + sum[g][c], left);                             \
            }                                                                                      \
    }

static inline void add_products(const float *x, const float *grad, float *of_w, float *of_b, long rows, long inner,
                                long outer) {
    for (long n = 0; n < outer;) {
        long k = 0;
        if (outer - n > LANES) {
            COLUMNS(8, 2) COLUMNS(1, 2)
            n += 2 * LANES;
        } else {
            COLUMNS(8, 1) COLUMNS(1, 1)
            n += LANES;
        }
    }
    for (long n = 0; of_b && n < outer; n += LANES) {
        vec sum = (vec){0};
        long i = 0, whole = whole_rows(rows, outer, n + LANES);
        for (; i < whole; i++) sum += load(grad + i * outer + n);
        for (; i < rows; i++) sum += load_some(grad + i * outer + n, outer - n);
        store_some(of_b + n, load_some(of_b + n, outer - n) + sum, outer - n);
    }
}

/* The gradients of affine() in weight and bias; of_bias may be NULL. */
void affine_back_w(const float *x, const float *grad, float *of_weight, float *of_bias, long replicas, long rows,
                   long inner, long outer) {
    memset(of_weight, 0, replicas * inner * outer * sizeof(float));
    if (of_bias) memset(of_bias, 0, replicas * outer * sizeof(float));
    for (long r = 0; r < replicas; r++)
        for (long first = 0; first < rows; first += CHUNK)
            add_products(x + (r * rows + first) * inner, grad + (r * rows + first) * outer,
                         of_weight + r * inner * outer, of_bias ? of_bias + r * outer : 0,
                         smaller(CHUNK, rows - first), inner, outer);
}
