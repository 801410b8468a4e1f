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

#define MAX_HEAD 256
#define VALUE_VECS 4 /* vectors of sums that stay in registers */
#define AHEAD 12     /* keys or values that are fetched before they are needed: each lies somewhere else */

INLINE void fetch(const number *x, int64_t size) {
    for (int64_t i = 0; i < size; i += 64 / (int64_t)sizeof(number)) __builtin_prefetch(x + i);
}

/* scores[length] of one to four queries with each key. */
INLINE void score_keys(const int64_t size, const int many, const float *queries, const number *keys,
                       const int32_t *slots, int64_t length, float *scores) {
    for (int64_t at = 0; at < length; at++) {
        const number *key = keys + slots[at] * size;
        fetch(keys + slots[at + AHEAD < length ? at + AHEAD : at] * size, size);
        vec sums[4] = {{0}};
        for (int64_t i = 0; i < size; i += LANES) {
            vec x = load_vec(key + i);
            for (int g = 0; g < many; g++) sums[g] += *(const vec *)(queries + g * size + i) * x;
        }
        for (int g = 0; g < many; g++) scores[g * length + at] = sum_vec(sums[g]);
    }
}

/* out[size] of one to four queries: the values weighted by their scores. */
INLINE void weigh_values(const int64_t size, const int many, const float *scores, const number *values,
                         const int32_t *slots, int64_t length, number *out) {
    for (int64_t first = 0; first < size; first += VALUE_VECS * LANES) {
        const int64_t end = size - first < VALUE_VECS * LANES ? (size - first) / LANES : VALUE_VECS;
        vec sums[4][VALUE_VECS] = {{{0}}};
        for (int64_t at = 0; at < length; at++) {
            const number *value = values + slots[at] * size + first;
            fetch(values + slots[at + AHEAD < length ? at + AHEAD : at] * size + first, end * LANES);
            for (int64_t i = 0; i < end; i++) {
                vec x = load_vec(value + i * LANES);
                for (int g = 0; g < many; g++) sums[g][i] += scores[g * length + at] * x;
            }
        }
        for (int g = 0; g < many; g++)
            for (int64_t i = 0; i < end * LANES; i++) out[g * size + first + i] = narrow(((float *)sums[g])[i]);
    }
}

static void softmax(float *x, int64_t length) {
    float top = x[0], total = 0;
#pragma omp simd reduction(max : top)
    for (int64_t i = 1; i < length; i++) top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < length; i++) x[i] = fast_exp(x[i] - top);
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < length; i++) total += x[i];
    for (int64_t i = 0; i < length; i++) x[i] /= total;
}

/* Queries of one row that share a key head: their scores, softmax and weighted values. Sizes are multiples of LANES. */
INLINE void attend_row(const int64_t size, const number *q, int64_t shared, const number *keys, const number *values,
                       const int32_t *slots, int64_t length, float scale, float *scores, number *out) {
    float queries[4 * MAX_HEAD];
    for (int64_t first = 0; first < shared; first += 4) {
        int64_t many = shared - first < 4 ? shared - first : 4;
        for (int64_t i = 0; i < many * size; i++) queries[i] = widen(q[first * size + i]) * scale;
        if (many == 1) score_keys(size, 1, queries, keys, slots, length, scores);
        if (many == 2) score_keys(size, 2, queries, keys, slots, length, scores);
        if (many == 3) score_keys(size, 3, queries, keys, slots, length, scores);
        if (many == 4) score_keys(size, 4, queries, keys, slots, length, scores);
        for (int64_t g = 0; g < many; g++) softmax(scores + g * length, length);
        number *own = out + first * size;
        if (many == 1) weigh_values(size, 1, scores, values, slots, length, own);
        if (many == 2) weigh_values(size, 2, scores, values, slots, length, own);
        if (many == 3) weigh_values(size, 3, scores, values, slots, length, own);
        if (many == 4) weigh_values(size, 4, scores, values, slots, length, own);
    }
}

/* The same for any size. */
static void attend_row_plainly(int64_t size, const number *q, int64_t shared, const number *keys, const number *values,
                               const int32_t *slots, int64_t length, float scale, float *scores, number *out) {
    for (int64_t g = 0; g < shared; g++) {
        for (int64_t at = 0; at < length; at++) {
            float sum = 0;
            for (int64_t i = 0; i < size; i++) sum += widen(q[g * size + i]) * widen(keys[slots[at] * size + i]);
            scores[at] = sum * scale;
        }
        softmax(scores, length);
        for (int64_t i = 0; i < size; i++) {
            float sum = 0;
            for (int64_t at = 0; at < length; at++) sum += scores[at] * widen(values[slots[at] * size + i]);
            out[g * size + i] = narrow(sum);
        }
    }
}

/* Attention of one new token of each row: its key and value are written to the row's last slot, then its queries see
 * all its slots, or the last `window` of them. q, k and v are rows with strides; slots [rows, columns]; out
 * [rows, heads, size]; scratch has `room` numbers for each thread, at least four times the longest row's tokens. */
void attend(const number *q, int64_t q_stride, const number *k, int64_t k_stride, const number *v, int64_t v_stride,
            number *kv, int64_t cache_slots, const int32_t *slots, int64_t columns, const int64_t *lengths, int64_t rows,
            int64_t heads, int64_t kv_heads, int64_t size, float scale, int64_t window, number *out, float *scratch,
            int64_t room, int64_t threads) {
    int64_t shared = heads / kv_heads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t part = 0; part < threads; part++) {
        float *scores = scratch + part * room;
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
                attend_row(64, query, shared, keys, values, own, length, scale, scores, mixed);
            else if (size == 128)
                attend_row(128, query, shared, keys, values, own, length, scale, scores, mixed);
            else if (size % LANES == 0 && size <= MAX_HEAD)
                attend_row(size, query, shared, keys, values, own, length, scale, scores, mixed);
            else
                attend_row_plainly(size, query, shared, keys, values, own, length, scale, scores, mixed);
        }
    }
}
