/* Passes over rows of logits on a CPU: a sample, or what a loss and its gradient need. Rows are shared out among
 * `threads`, those of torch's own pool; a row's numbers do not depend on the others. Sums over a vocabulary are float64
 * sums of blocks in float32.
 */
#include "cpu_numbers.h"

#define BLOCK 256

INLINE float largest(const number *x, int64_t size) {
    float top = -INFINITY;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < size; i++) top = widen(x[i]) > top ? widen(x[i]) : top;
    return top;
}

/* e to the (x - top) of a block, 0 where x is minus infinity, and their sum. */
INLINE float block_powers(const number *x, float top, float factor, int64_t size, float *powers) {
    float sum = 0;
    for (int64_t i = 0; i < size; i++) powers[i] = fast_exp((widen(x[i]) - top) * factor);
    for (int64_t i = 0; i < size; i++) powers[i] = limited(powers[i], 0, -((widen(x[i]) - top) * factor < -87.3f));
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) sum += powers[i];
    return sum;
}

INLINE int64_t block_size(int64_t vocab, int64_t first) { return vocab - first < BLOCK ? vocab - first : BLOCK; }

/* The first token whose cumulative weight exceeds uniform times the total, by block and then inside of it, or the
 * likeliest (greedy), or one that is given (forced, -1: none; may be null); and its log-probability. blocks: room for
 * vocab / 256 + 1 numbers of each row. */
void sample(const number *logits, int64_t rows, int64_t vocab, const double *uniform, const uint8_t *greedy,
            const int64_t *forced, double *blocks, int64_t *tokens, float *logprobs, int64_t threads) {
    int64_t many = (vocab + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const number *x = logits + row * vocab;
        double *reached = blocks + row * many, total = 0;
        float powers[BLOCK], top = largest(x, vocab);
        for (int64_t b = 0; b < many; b++)
            reached[b] = total += block_powers(x + b * BLOCK, top, 1, block_size(vocab, b * BLOCK), powers);
        int64_t token = 0;
        if (forced && forced[row] >= 0) {
            token = forced[row];
        } else if (greedy[row]) {
            while (token < vocab - 1 && !(widen(x[token]) == top)) token++;
        } else {
            double goal = uniform[row] * total;
            int64_t b = 0, size, heaviest = 0, within = 0;
            while (b < many - 1 && !(reached[b] > goal)) b++;
            size = block_size(vocab, b * BLOCK);
            block_powers(x + b * BLOCK, top, 1, size, powers);
            double sum = b ? reached[b - 1] : 0;
            for (int64_t i = 1; i < size; i++) heaviest = powers[i] > powers[heaviest] ? i : heaviest;
            for (within = 0; within < size; within++)
                if ((sum += powers[within]) > goal) break;
            /* rounding at a border can point at a token of weight 0, or past the block: take its heaviest instead */
            token = b * BLOCK + (within == size || !(powers[within] > 0) ? heaviest : within);
        }
        tokens[row] = token;
        logprobs[row] = widen(x[token]) - top - (float)log(total);
    }
}

/* Of the logits divided by a temperature: the log of the normaliser, and the entropy. */
void norm_and_entropy(const number *logits, int64_t rows, int64_t vocab, float temperature, float *norm, float *entropy,
                      int64_t threads) {
    float factor = 1.0f / temperature;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const number *x = logits + row * vocab;
        float powers[BLOCK], top = largest(x, vocab);
        double total = 0, weighted = 0; /* sums of e to the z, and of that times z, with z = (x - top) / temperature */
        for (int64_t first = 0; first < vocab; first += BLOCK) {
            int64_t size = block_size(vocab, first);
            total += block_powers(x + first, top, factor, size, powers);
            float sum = 0;
            for (int64_t i = 0; i < size; i++) powers[i] *= (widen(x[first + i]) - top) * factor;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < size; i++) sum += powers[i];
            weighted += sum;
        }
        norm[row] = top * factor + (float)log(total);
        entropy[row] = (float)(log(total) - weighted / total);
    }
}

/* The gradient of the logits, in their place: first times d log p = onehot - p, plus second times d H = -p (log p + H).
 * `second` and `entropy` may be null. */
void slope(number *logits, int64_t rows, int64_t vocab, const int64_t *target, const float *norm, const float *first,
           const float *second, const float *entropy, float temperature, int64_t threads) {
    float factor = 1.0f / temperature;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        number *x = logits + row * vocab;
        float powers[BLOCK], own = first[row], more = second ? second[row] : 0, with = second ? entropy[row] : 0;
        float hit = fast_exp(widen(x[target[row]]) * factor - norm[row]);
        hit = own - hit * (own + more * (widen(x[target[row]]) * factor - norm[row] + with));
        for (int64_t at = 0; at < vocab; at += BLOCK) {
            int64_t size = block_size(vocab, at);
            number *part = x + at;
            for (int64_t i = 0; i < size; i++) powers[i] = fast_exp(widen(part[i]) * factor - norm[row]);
            for (int64_t i = 0; i < size; i++) {
                float weight = own + more * (widen(part[i]) * factor - norm[row] + with);
                part[i] = narrow(-powers[i] * weight * factor);
            }
        }
        x[target[row]] = narrow(hit * factor);
    }
}
