/* Layer normalisation: LANES rows are the lanes of a vector, so means are sums over vectors. */
#include "vectors.h"

static inline float total(vec v) {
    float part[LANES];
    store(part, v);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

/* x and out are [replicas, rows, width], means and inverse deviations [replicas, rows]; scale and shift have `width`
 * numbers for each replica, `scale_stride` and `shift_stride` numbers apart. scratch: width vectors. */
void normalise(const float *x, const float *scale, const float *shift, float *out, float *means, float *inverses,
               float *scratch, long scale_stride, long shift_stride, long replicas, long rows, long width,
               float epsilon) {
    vec *t = (vec *)scratch;
    for (long r = 0; r < replicas; r++, scale += scale_stride, shift += shift_stride)
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
                    float *of_x, float *of_scale, float *of_shift, float *scratch, long scale_stride, long replicas,
                    long rows, long width) {
    vec *g = (vec *)scratch, *d = g + width, *along_scale = d + width, *along_shift = along_scale + width;
    for (long r = 0; r < replicas; r++, scale += scale_stride, of_scale += width, of_shift += width) {
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
