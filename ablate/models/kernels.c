/* Attention and layer normalisation of small networks on a CPU: float32, one thread.
 *
 * Sixteen tokens are the lanes of a vector, so softmax and norms sum over vectors and not across lanes. A sample, and a
 * row of a norm, is computed from its values alone: no result depends on how many others there are.
 */
#include <stdint.h>
#include <string.h>

#define LANES 16
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4)));

static inline vec load(const float *from) {
    vec v;
    memcpy(&v, from, sizeof v);
    return v;
}

static inline void store(float *to, vec v) { memcpy(to, &v, sizeof v); }

static inline vec splat(float x) { return (vec){0} + x; }

static inline vec pick(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

static inline long smaller(long a, long b) { return a < b ? a : b; }

static inline float total(vec v) {
    float part[LANES];
    store(part, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

/* e^x for x <= 0 and NaN; 0 below -87. The polynomial is that of the Cephes library (expf). */
static inline vec exponential(vec x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: a sum with it has no fraction */
    ivec tiny = x < splat(-87.0f);
    vec n = (x * 1.44269504088896341f + magic) - magic;
    vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ivec power = (__builtin_convertvector(pick(tiny, splat(0.0f), n), ivec) + 127) << 23;
    return pick(tiny, splat(0.0f), p * (vec)power);
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

/* out[m] = sum over k of a[m * row + k * column] * b[k], for `size` values of m at once, which keep the processor busy */
#define GROUP(size)                                                                                   \
    for (; m + size <= count; m += size) {                                                            \
        vec sum[size];                                                                                \
        for (int g = 0; g < size; g++) sum[g] = (vec){0};                                             \
        for (long k = 0; k < inner; k++)                                                              \
            for (int g = 0; g < size; g++) sum[g] += a[(m + g) * row + k * column] * b[k];            \
        for (int g = 0; g < size; g++) out[m + g] = sum[g];                                           \
    }

static inline void product(vec *out, const float *a, long row, long column, const vec *b, long count, long inner) {
    long m = 0;
    GROUP(8) GROUP(4) GROUP(1)
}

/* softmax of s * scale + bias over its `count` vectors */
static inline void softmax(vec *s, const vec *bias, long count, float scale) {
    vec most = splat(-__builtin_inff()), sum = (vec){0};
    for (long j = 0; j < count; j++) {
        s[j] = bias ? s[j] * scale + bias[j] : s[j] * scale;
        most = pick(most > s[j], most, s[j]);
    }
    for (long j = 0; j < count; j++) {
        s[j] = exponential(s[j] - most);
        sum += s[j];
    }
    sum = 1.0f / sum;
    for (long j = 0; j < count; j++) s[j] *= sum;
}

/* Queries, keys, values and out are [samples, tokens, heads * width], bias is NULL or [blocks of LANES queries, keys,
 * LANES]. Weights are [samples, blocks, heads, keys, LANES] if `kept`, and [keys, LANES] otherwise.
 * scratch: 2 * heads * width vectors. */
void attend(const float *q, const float *k, const float *v, const float *bias, float *weights, float *out, float *scratch,
            long samples, long queries, long keys, long heads, long width, long kept, float scale) {
    long all = heads * width;
    vec *qt = (vec *)scratch, *ot = qt + all, *w = (vec *)weights;
    for (long s = 0; s < samples; s++)
        for (long first = 0; first < queries; first += LANES) {
            long rows = smaller(LANES, queries - first), own = (s * queries + first) * all;
            columns(qt, q + own, rows, all);
            for (long h = 0; h < heads; h++, w += kept ? keys : 0) {
                long head = s * keys * all + h * width;
                product(w, k + head, all, 1, qt + h * width, keys, width);
                softmax(w, bias ? (const vec *)bias + first / LANES * keys : 0, keys, scale);
                product(ot + h * width, v + head, 1, all, w, width, keys);
            }
            put_columns(out + own, ot, rows, all);
        }
}

/* to[c], with keys as lanes, += sum over i of x[i][c] * s[j][i], for `rows` <= LANES queries i and all keys j */
static inline void spread(vec *to, long all, const vec *s, const float *x, long rows, long keys, long width, vec *part) {
    for (long first = 0; first < keys; first += LANES, to += all) {
        vec t[LANES];
        for (long j = 0; j < LANES; j++) t[j] = first + j < keys ? s[first + j] : (vec){0};
        transpose(t);
        product(part, x, 1, all, t, width, rows);
        for (long c = 0; c < width; c++) to[c] += part[c];
    }
}

/* The gradients of attend(). scratch: (3 + 2 * blocks of LANES keys) * heads * width + keys vectors. */
void attend_back(const float *q, const float *k, const float *v, const float *weights, const float *grad, float *of_q,
                 float *of_k, float *of_v, float *scratch, long samples, long queries, long keys, long heads, long width,
                 float scale) {
    long all = heads * width, blocks = (keys + LANES - 1) / LANES;
    vec *gt = (vec *)scratch, *qt = gt + all, *part = qt + all, *kt = part + all, *vt = kt + blocks * all,
        *of_s = vt + blocks * all;
    const vec *w = (const vec *)weights;
    for (long s = 0; s < samples; s++) {
        memset(kt, 0, 2 * blocks * all * sizeof(vec));
        for (long first = 0; first < queries; first += LANES) {
            long rows = smaller(LANES, queries - first), own = (s * queries + first) * all;
            columns(gt, grad + own, rows, all);
            for (long h = 0; h < heads; h++, w += keys) {
                long at = h * width, head = s * keys * all + at;
                vec sum = (vec){0};
                product(of_s, v + head, all, 1, gt + at, keys, width);
                for (long j = 0; j < keys; j++) sum += w[j] * of_s[j];
                for (long j = 0; j < keys; j++) of_s[j] = w[j] * (of_s[j] - sum) * scale;
                product(qt + at, k + head, 1, all, of_s, width, keys);
                spread(vt + at, all, w, grad + own + at, rows, keys, width, part);
                spread(kt + at, all, of_s, q + own + at, rows, keys, width, part);
            }
            put_columns(of_q + own, qt, rows, all);
        }
        for (long b = 0; b < blocks; b++) {
            long rows = smaller(LANES, keys - b * LANES), place = (s * keys + b * LANES) * all;
            put_columns(of_k + place, kt + b * all, rows, all);
            put_columns(of_v + place, vt + b * all, rows, all);
        }
    }
}

/* x and out are [replicas, rows, width], scale and shift [replicas, width], means and inverse deviations [replicas,
 * rows]. scratch: width vectors. */
void normalise(const float *x, const float *scale, const float *shift, float *out, float *means, float *inverses,
               float *scratch, long replicas, long rows, long width, float epsilon) {
    vec *t = (vec *)scratch;
    for (long r = 0; r < replicas; r++, scale += width, shift += width)
        for (long first = 0; first < rows; first += LANES) {
            long count = smaller(LANES, rows - first), row = r * rows + first;
            vec sum = (vec){0}, squares = (vec){0};
            columns(t, x + row * width, count, width);
            for (long c = 0; c < width; c++) sum += t[c];
            sum /= (float)width;
            for (long c = 0; c < width; c++) {
                t[c] -= sum;
                squares += t[c] * t[c];
            }
            squares = squares / (float)width + epsilon;
            for (int i = 0; i < LANES; i++) squares[i] = 1.0f / __builtin_sqrtf(squares[i]);
            for (long c = 0; c < width; c++) t[c] = t[c] * squares * scale[c] + shift[c];
            put_columns(out + row * width, t, count, width);
            memcpy(means + row, &sum, count * sizeof(float));
            memcpy(inverses + row, &squares, count * sizeof(float));
        }
}

/* The gradients of normalise(). scratch: 4 * width vectors. */
void normalise_back(const float *grad, const float *x, const float *means, const float *inverses, const float *scale,
                    float *of_x, float *of_scale, float *of_shift, float *scratch, long replicas, long rows, long width) {
    vec *g = (vec *)scratch, *d = g + width, *along_scale = d + width, *along_shift = along_scale + width;
    for (long r = 0; r < replicas; r++, scale += width, of_scale += width, of_shift += width) {
        memset(along_scale, 0, 2 * width * sizeof(vec));
        for (long first = 0; first < rows; first += LANES) {
            long count = smaller(LANES, rows - first), row = r * rows + first;
            vec mean = (vec){0}, inverse = (vec){0}, sum = (vec){0}, along = (vec){0};
            memcpy(&mean, means + row, count * sizeof(float));
            memcpy(&inverse, inverses + row, count * sizeof(float));
            columns(g, grad + row * width, count, width);
            columns(d, x + row * width, count, width);
            for (long c = 0; c < width; c++) {
                d[c] = (d[c] - mean) * inverse;
                along_shift[c] += g[c];
                along_scale[c] += g[c] * d[c];
                g[c] *= scale[c];
                sum += g[c];
                along += g[c] * d[c];
            }
            sum /= (float)width;
            along /= (float)width;
            for (long c = 0; c < width; c++) g[c] = (g[c] - sum - d[c] * along) * inverse;
            put_columns(of_x + row * width, g, count, width);
        }
        for (long c = 0; c < width; c++) {
            of_scale[c] = total(along_scale[c]);
            of_shift[c] = total(along_shift[c]);
        }
    }
}
