/* The short operations of a decoder's layer on a CPU, between its matrix products: one pass over the numbers each.
 *
 * Numbers are float32, or bfloat16 where BFLOAT16 is defined. Sums are float32. In bfloat16 each function rounds where
 * nets/decoder.py rounds, so that sampling and learning see the same network. Rows are shared out among `threads`, those
 * of torch's own pool; a row's numbers do not depend on the others.
 *
 * Keys and values are [2, key heads, slots, head size].
 */
#include "cpu_numbers.h"

/* out = RMSNorm(x) * weight for one row. */
INLINE void norm_row(const number *x, const number *weight, number *out, int64_t width, float eps) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) sum += widen(x[i]) * widen(x[i]);
    float factor = 1.0f / sqrtf(sum / (float)width + eps);
    for (int64_t i = 0; i < width; i++) out[i] = narrow(rounded(widen(x[i]) * factor) * widen(weight[i]));
}

/* x += more, unless `more` is null; out = RMSNorm(x) * weight. All [rows, width]. */
void add_norm(number *x, const number *more, const number *weight, number *out, int64_t rows, int64_t width, float eps,
              int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        number *own = x + row * width;
        if (more) {
            const number *added = more + row * width;
            for (int64_t i = 0; i < width; i++) own[i] = narrow(widen(own[i]) + widen(added[i]));
        }
        norm_row(own, weight, out + row * width, width, eps);
    }
}

/* Rotate the `heads` queries and keys at the start of each row, after norms where there are some. cosines and sines are
 * [rows, size / 2]; q_norm and k_norm are [size] or null; the first `queries` heads are queries. */
void rotate(number *x, int64_t stride, const float *cosines, const float *sines, const number *q_norm,
            const number *k_norm, int64_t rows, int64_t heads, int64_t queries, int64_t size, float eps,
            int64_t threads) {
    int64_t half = size / 2;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *cosine = cosines + row * half, *sine = sines + row * half;
        for (int64_t head = 0; head < heads; head++) {
            number *low = x + row * stride + head * size, *high = low + half;
            const number *weight = head < queries ? q_norm : k_norm;
            if (weight) norm_row(low, weight, low, size, eps);
            for (int64_t i = 0; i < half; i++) {
                float a = widen(low[i]), b = widen(high[i]);
                low[i] = narrow(rounded(a * cosine[i]) - rounded(b * sine[i]));
                high[i] = narrow(rounded(b * cosine[i]) + rounded(a * sine[i]));
            }
        }
    }
}

#define GATE_BLOCK 256

/* out[rows, width] = activation(gate) * up, of rows with the gate first. */
void gate_and_multiply(const number *both, number *out, int64_t rows, int64_t width, int64_t gelu, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float powers[GATE_BLOCK];
        for (int64_t first = 0; first < width; first += GATE_BLOCK) {
            const number *gate = both + row * 2 * width + first, *up = gate + width;
            number *own = out + row * width + first;
            int64_t size = width - first < GATE_BLOCK ? width - first : GATE_BLOCK;
            for (int64_t i = 0; i < size; i++) { /* activation(x) = x / (1 + e to the power) */
                float x = widen(gate[i]);
                powers[i] = gelu ? -1.5957691216057308f * (x + 0.044715f * x * x * x) : -x;
            }
            for (int64_t i = 0; i < size; i++) powers[i] = fast_exp(powers[i]);
            for (int64_t i = 0; i < size; i++)
                own[i] = narrow(rounded(widen(gate[i]) / (1.0f + powers[i])) * widen(up[i]));
        }
    }
}

/* Queries of one row that share a key head: their scores, softmax and weighted values. */
INLINE void attend_row(const int64_t size, const number *q, int64_t shared, const number *keys, const number *values,
                       const int32_t *slots, int64_t length, float scale, float *scores, float *queries, float *sums,
                       number *out) {
    for (int64_t i = 0; i < shared * size; i++) queries[i] = widen(q[i]) * scale;
    for (int64_t i = 0; i < shared * size; i++) sums[i] = 0;
    for (int64_t at = 0; at < length; at++) {
        const number *key = keys + slots[at] * size;
        for (int64_t g = 0; g < shared; g++) {
            const float *query = queries + g * size;
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < size; i++) sum += query[i] * widen(key[i]);
            scores[g * length + at] = sum;
        }
    }
    for (int64_t g = 0; g < shared; g++) {
        float *own = scores + g * length, top = own[0], total = 0;
#pragma omp simd reduction(max : top)
        for (int64_t at = 1; at < length; at++) top = own[at] > top ? own[at] : top;
        for (int64_t at = 0; at < length; at++) own[at] = fast_exp(own[at] - top);
#pragma omp simd reduction(+ : total)
        for (int64_t at = 0; at < length; at++) total += own[at];
        for (int64_t at = 0; at < length; at++) own[at] /= total;
    }
    for (int64_t at = 0; at < length; at++) {
        const number *value = values + slots[at] * size;
        for (int64_t g = 0; g < shared; g++) {
            float weight = scores[g * length + at], *sum = sums + g * size;
            for (int64_t i = 0; i < size; i++) sum[i] += weight * widen(value[i]);
        }
    }
    for (int64_t i = 0; i < shared * size; i++) out[i] = narrow(sums[i]);
}

/* Attention of one new token of each row: its key and value are written to the row's last slot, then its queries see
 * all its slots, or the last `window` of them. q, k and v are rows with strides; slots [rows, columns]; out
 * [rows, heads, size]; scratch has room for `shared` times the longest row's scores and 2 * shared * size for each
 * thread, each `room` numbers. */
void attend(const number *q, int64_t q_stride, const number *k, int64_t k_stride, const number *v, int64_t v_stride,
            number *kv, int64_t cache_slots, const int32_t *slots, int64_t columns, const int64_t *lengths, int64_t rows,
            int64_t heads, int64_t kv_heads, int64_t size, float scale, int64_t window, number *out, float *scratch,
            int64_t room, int64_t threads) {
    int64_t shared = heads / kv_heads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t part = 0; part < threads; part++) {
        float *queries = scratch + part * room, *sums = queries + shared * size, *scores = sums + shared * size;
        int64_t tasks = rows * kv_heads;
        for (int64_t task = part * tasks / threads; task < (part + 1) * tasks / threads; task++) {
            int64_t row = task / kv_heads, head = task % kv_heads, length = lengths[row];
            const int32_t *own = slots + row * columns;
            number *keys = kv + head * cache_slots * size, *values = keys + kv_heads * cache_slots * size;
            memcpy(keys + own[length - 1] * size, k + row * k_stride + head * size, size * sizeof(number));
            memcpy(values + own[length - 1] * size, v + row * v_stride + head * size, size * sizeof(number));
            if (window && length > window) own += length - window, length = window;
            const number *query = q + row * q_stride + head * shared * size;
            number *mixed = out + (row * heads + head * shared) * size;
            if (size == 64)
                attend_row(64, query, shared, keys, values, own, length, scale, scores, queries, sums, mixed);
            else if (size == 128)
                attend_row(128, query, shared, keys, values, own, length, scale, scores, queries, sums, mixed);
            else
                attend_row(size, query, shared, keys, values, own, length, scale, scores, queries, sums, mixed);
        }
    }
}
