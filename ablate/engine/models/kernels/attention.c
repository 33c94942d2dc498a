/* Attention: queries are the lanes of a vector, so softmax sums over vectors and not across lanes. */
#include "vectors.h"

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

/* out[m] = sum over k of a[m * row + k * column] * b[k], for `size` values of m at once */
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

/* softmax of s * scale over its `count` vectors; a number that is hidden (not 0) is replaced by the lowest one */
static inline void softmax(vec *s, const vec *hidden, long count, float scale) {
    vec most = splat(-__builtin_inff()), sum = (vec){0};
    for (long j = 0; j < count; j++) {
        s[j] *= scale;
        if (hidden) s[j] = pick(hidden[j] != splat(0.0f), splat(-__FLT_MAX__), s[j]);
        most = pick(most > s[j], most, s[j]);
    }
    for (long j = 0; j < count; j++) {
        s[j] = exponential(s[j] - most);
        sum += s[j];
    }
    sum = 1.0f / sum;
    for (long j = 0; j < count; j++) s[j] *= sum;
}

/* Queries, keys, values and out are [samples, tokens, heads * width], hidden is NULL or [blocks of LANES queries, keys,
 * LANES]. Weights are [samples, blocks, heads, keys, LANES] if `kept`, and [keys, LANES] otherwise.
 * scratch: 2 * heads * width vectors. */
void attend(const float *q, const float *k, const float *v, const float *hidden, float *weights, float *out,
            float *scratch, long samples, long queries, long keys, long heads, long width, long kept, float scale) {
    long all = heads * width;
    vec *qt = (vec *)scratch, *ot = qt + all, *w = (vec *)weights;
    for (long s = 0; s < samples; s++)
        for (long first = 0; first < queries; first += LANES) {
            long rows = smaller(LANES, queries - first), own = (s * queries + first) * all;
            columns(qt, q + own, rows, all);
            for (long h = 0; h < heads; h++, w += kept ? keys : 0) {
                long head = s * keys * all + h * width;
                product(w, k + head, all, 1, qt + h * width, keys, width);
                softmax(w, hidden ? (const vec *)hidden + first / LANES * keys : 0, keys, scale);
                product(ot + h * width, v + head, 1, all, w, width, keys);
            }
            put_columns(out + own, ot, rows, all);
        }
}

/* Add to to[c], with keys j as lanes, the sum of x[i][c] * s[j][i] over `rows` <= LANES queries i. `to` has `all`
 * vectors for each LANES keys. */
static inline void spread(vec *to, long all, const vec *s, const float *x, long rows, long keys, long width,
                          vec *part) {
    for (long first = 0; first < keys; first += LANES, to += all) {
        vec t[LANES];
        for (long j = 0; j < LANES; j++) t[j] = first + j < keys ? s[first + j] : (vec){0};
        transpose(t);
        product(part, x, 1, all, t, width, rows);
        for (long c = 0; c < width; c++) to[c] += part[c];
    }
}

/* The gradients of attend(). scratch: (3 + 2 * blocks of LANES keys) * heads * width + keys vectors. */
void attend_back(const float *q, const float *k, const float *v, const float *hidden, const float *weights,
                 const float *grad, float *of_q, float *of_k, float *of_v, float *scratch, long samples, long queries,
                 long keys, long heads, long width, float scale) {
    long all = heads * width, blocks = (keys + LANES - 1) / LANES;
    vec *gt = (vec *)scratch, *qt = gt + all, *part = qt + all, *kt = part + all, *vt = kt + blocks * all,
        *of_s = vt + blocks * all;
    const vec *w = (const vec *)weights;
    for (long s = 0; s < samples; s++) {
        memset(kt, 0, 2 * blocks * all * sizeof(vec));
        for (long first = 0; first < queries; first += LANES) {
            long rows = smaller(LANES, queries - first), own = (s * queries + first) * all;
            const vec *out_of_sight = hidden ? (const vec *)hidden + first / LANES * keys : 0;
            columns(gt, grad + own, rows, all);
            for (long h = 0; h < heads; h++, w += keys) {
                long at = h * width, head = s * keys * all + at;
                vec sum = (vec){0};
                product(of_s, v + head, all, 1, gt + at, keys, width);
                for (long j = 0; j < keys; j++) sum += w[j] * of_s[j];
                for (long j = 0; j < keys; j++) {
                    of_s[j] = w[j] * (of_s[j] - sum) * scale;
                    if (out_of_sight) of_s[j] = pick(out_of_sight[j] != splat(0.0f), splat(0.0f), of_s[j]);
                }
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
