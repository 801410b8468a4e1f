/* The short operations of a decoder's layer on a CPU with their gradients: one pass over the numbers each.
 *
 * Sums are float32. In bfloat16 the forward passes round where torch's operations would, each by itself. Rows are
 * shared out among `threads`, those of torch's own pool.
 */
#include "cpu_numbers.h"

/* out = x factor weight with factor = 1 / sqrt(mean(x^2) + eps), which is kept for the gradient. */
void norm(const number *x, const number *weight, number *out, float *factors, int64_t rows, int64_t width, float eps,
          int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const number *own = x + row * width;
        number *normed = out + row * width;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) sum += widen(own[i]) * widen(own[i]);
        float factor = factors[row] = 1.0f / sqrtf(sum / (float)width + eps);
        for (int64_t i = 0; i < width; i++) normed[i] = narrow(rounded(widen(own[i]) * factor) * widen(weight[i]));
    }
}

/* With n = x factor and g = grad weight: grad_x = factor (g - n mean(g n)), and grad_weight, the sum of grad n over the
 * rows of each thread, [threads, width], zeros before. */
void norm_backward(const number *grad, const number *x, const number *weight, const float *factors, number *grad_x,
                   float *grad_weight, int64_t rows, int64_t width, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t part = 0; part < threads; part++) {
        float *sums = grad_weight + part * width;
        for (int64_t row = part * rows / threads; row < (part + 1) * rows / threads; row++) {
            const number *g = grad + row * width, *own = x + row * width;
            number *out = grad_x + row * width;
            float factor = factors[row], sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < width; i++) sum += widen(g[i]) * widen(weight[i]) * widen(own[i]);
            float share = sum * factor * factor / (float)width;
            for (int64_t i = 0; i < width; i++) sums[i] += widen(g[i]) * widen(own[i]) * factor;
            for (int64_t i = 0; i < width; i++)
                out[i] = narrow(factor * (widen(g[i]) * widen(weight[i]) - widen(own[i]) * share));
        }
    }
}

#define BLOCK 256

INLINE int64_t block_size(int64_t count, int64_t first) { return count - first < BLOCK ? count - first : BLOCK; }

/* out = gate sigmoid(gate) up, of `count` numbers. */
void swiglu(const number *gate, const number *up, number *out, int64_t count, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t first = 0; first < count; first += BLOCK) {
        float powers[BLOCK];
        int64_t size = block_size(count, first);
        const number *g = gate + first, *u = up + first;
        number *own = out + first;
        for (int64_t i = 0; i < size; i++) powers[i] = fast_exp(-widen(g[i]));
        for (int64_t i = 0; i < size; i++) own[i] = narrow(rounded(widen(g[i]) / (1.0f + powers[i])) * widen(u[i]));
    }
}

/* The gradients of gate, s u (1 + gate (1 - s)) grad with s = sigmoid(gate), and of up, gate s grad. */
void swiglu_backward(const number *grad, const number *gate, const number *up, number *grad_gate, number *grad_up,
                     int64_t count, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t first = 0; first < count; first += BLOCK) {
        float powers[BLOCK];
        int64_t size = block_size(count, first);
        const number *own = grad + first, *g = gate + first, *u = up + first;
        number *to_gate = grad_gate + first, *to_up = grad_up + first;
        for (int64_t i = 0; i < size; i++) powers[i] = fast_exp(-widen(g[i]));
        for (int64_t i = 0; i < size; i++) {
            float x = widen(g[i]), s = 1.0f / (1.0f + powers[i]), slope = widen(own[i]);
            to_gate[i] = narrow(slope * widen(u[i]) * s * (1.0f + x * (1.0f - s)));
            to_up[i] = narrow(slope * x * s);
        }
    }
}

/* Rotate rows of heads, [rows, heads, size], by angles whose cosines and sines are [rows, size]; the sines are taken
 * times `sign`. `stride`: from one row of x to the next. */
void turn(const number *x, const number *cosines, const number *sines, number *out, int64_t stride, int64_t rows,
          int64_t heads, int64_t size, float sign, int64_t threads) {
    int64_t half = size / 2;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const number *cosine = cosines + row * size, *sine = sines + row * size;
        for (int64_t head = 0; head < heads; head++) {
            const number *low = x + row * stride + head * size, *high = low + half;
            number *to = out + (row * heads + head) * size;
            for (int64_t i = 0; i < half; i++) {
                float a = widen(low[i]), b = widen(high[i]), c = widen(cosine[i]), s = sign * widen(sine[i]);
                to[i] = narrow(rounded(a * c) - rounded(b * s));
                to[i + half] = narrow(rounded(b * c) + rounded(a * s));
            }
        }
    }
}
