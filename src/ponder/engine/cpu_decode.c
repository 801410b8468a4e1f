/* Decoding steps of a small float32 decoder on a CPU: the layers, the cache and sampling, for many rows and steps.
 *
 * A row is computed by itself: no sum depends on which other rows there are, or on how many threads. A product is
 * rounded before it is added except by `fused`: compilers choose by the number of rows, so the flags of
 * cpu_decode_library.py leave them no choice. Rows are taken by threads in blocks, and a block runs all its steps before
 * the next.
 *
 * Matrices are panels of 16 outputs, [outputs / 16][inputs][16]. Keys and values are [2, heads, slots, head size].
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define ROWS 8
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES 8
#define ROWS 4
#else
#define LANES 4
#define ROWS 4
#endif
#define PANEL 16
#define COLUMNS (PANEL / LANES)
#define MAX_BLOCK 32 /* rows, a multiple of ROWS */
#define MAX_THREADS 64
#define MAX_HEAD 256

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias)); /* head sizes are multiples of 8 */

typedef struct {
    const float *attention_norm, *mlp_norm, *qkv, *qkv_bias, *qk_norm, *out, *out_bias, *gate_up, *gate_up_bias, *down,
        *down_bias; /* biases and qk_norm may be null */
    float *kv;
    int64_t window; /* tokens back that a token sees, itself included; 0: all */
} Layer;

typedef struct {
    int64_t layers, width, heads, kv_heads, head_size, mlp_width, vocab, slots, gelu;
    float eps, scale;
    const float *embedding, *norm, *head;
    const float *cosines, *sines; /* [positions][head size / 2] */
    const Layer *layer;
} Model;

typedef struct {
    const int32_t *slots;  /* of its tokens, by position */
    const uint8_t *ends;   /* whether a token of the vocabulary ends it */
    uint64_t rng_key;
    int64_t drawn;         /* random numbers so far */
    int64_t position;      /* of its next input */
    int64_t left;          /* tokens that it may still sample */
    float temperature;     /* 0: greedy */
    int32_t token;         /* the next input */
} Row;

typedef struct {
    const Model *model;
    Row *rows;
    int64_t count, steps, block;
    int32_t *tokens;  /* [count, steps] */
    float *logprobs;  /* [count, steps] */
    float *logits;    /* [count, vocab]: one step without sampling; null: sample */
    atomic_long next; /* block */
    atomic_int failed;
} Job;

typedef struct {
    float *x, *normed, *heads, *mixed, *gate_up, *logits, *scores;
    int64_t qkv_width, mlp_panels, vocab_panels;
    int64_t room; /* for scores */
} Scratch;

static inline int64_t padded(int64_t n) { return (n + PANEL - 1) / PANEL * PANEL; }

/* a times b plus c, rounded once where the processor can. */
static inline vec4 fused4(vec4 a, vec4 b, vec4 c) {
#if defined(__FMA__)
    return (vec4)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
#elif defined(__aarch64__)
    return (vec4)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

static inline vec fused(vec a, vec b, vec c) {
#if LANES == 16
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LANES == 8
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return (vec)fused4((vec4)a, (vec4)b, (vec4)c);
#endif
}

static inline vec4 splat4(float x) { return (vec4){x, x, x, x}; }

static inline vec splat(float x) {
    vec v;
    for (int i = 0; i < LANES; i++) v[i] = x;
    return v;
}

static inline vec vexp(vec x) {
    vec low = {0}, half = {0};
    low = low - 87.3f;
    vec high = -low;
    half = half + 0.5f;
    x = (vec)(((ivec)(x < low) & (ivec)low) | (~(ivec)(x < low) & (ivec)x)); /* NaN stays */
    x = (vec)(((ivec)(x > high) & (ivec)high) | (~(ivec)(x > high) & (ivec)x));
    vec t = x * 1.44269504088896341f;
    vec away = (vec)(((ivec)(t < 0) & (ivec)(-half)) | (~(ivec)(t < 0) & (ivec)half));
    ivec n = __builtin_convertvector(t + away, ivec);
    vec f = __builtin_convertvector(n, vec);
    vec r = fused(f, splat(-0.693359375f), x);
    r = fused(f, splat(2.12194440e-4f), r);
    vec p = fused(r, splat(1.9875691500e-4f), splat(1.3981999507e-3f));
    p = fused(p, r, splat(8.3334519073e-3f));
    p = fused(p, r, splat(4.1665795894e-2f));
    p = fused(p, r, splat(1.6666665459e-1f));
    p = fused(p, r, splat(5.0000001201e-1f));
    p = fused(p * r, r, r) + 1.0f;
    return p * (vec)((n + 127) << 23);
}

/* out[rows, outputs] = x[rows, inputs] times a matrix, plus a bias or what is in `out`, each by itself or none. The sum
 * of an output runs over the inputs in their order, however many rows there are. */
__attribute__((always_inline)) static inline void multiply(const int rows, const float *x, int64_t inputs,
                                                           const float *matrix, int64_t outputs, const float *bias,
                                                           int add, float *out) {
    for (int64_t at = 0; at < outputs; at += PANEL, matrix += PANEL * inputs) {
        vec sum[ROWS][COLUMNS];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int c = 0; c < COLUMNS; c++) sum[r][c] = (vec){0};
        for (int64_t k = 0; k < inputs; k++) {
            vec m[COLUMNS];
#pragma GCC unroll 4
            for (int c = 0; c < COLUMNS; c++) m[c] = *(const vec *)(matrix + k * PANEL + c * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
                for (int c = 0; c < COLUMNS; c++) sum[r][c] = fused(splat(x[r * inputs + k]), m[c], sum[r][c]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int c = 0; c < COLUMNS; c++) {
                float *to = out + r * outputs + at + c * LANES;
                vec s = sum[r][c];
                if (add) s += *(vec *)to;
                if (bias) s += *(const vec *)(bias + at + c * LANES);
                *(vec *)to = s;
            }
    }
}

static void multiply_rows(int64_t rows, const float *x, int64_t inputs, const float *matrix, int64_t outputs,
                          const float *bias, int add, float *out) {
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS)
        multiply(ROWS, x + r * inputs, inputs, matrix, outputs, bias, add, out + r * outputs);
    for (; r + 2 <= rows; r += 2)
        multiply(2, x + r * inputs, inputs, matrix, outputs, bias, add, out + r * outputs);
    if (r < rows) multiply(1, x + r * inputs, inputs, matrix, outputs, bias, add, out + r * outputs);
}

static void rms_norm(const float *x, int64_t n, const float *weight, float eps, float *out) {
    float part[8] = {0};
    for (int64_t i = 0; i < n; i += 8)
        for (int j = 0; j < 8; j++) part[j] += x[i + j] * x[i + j];
    float sum = ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
    float by = 1.0f / sqrtf(sum / (float)n + eps);
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * by * weight[i];
}

#define AHEAD 12 /* keys or values that are fetched before they are needed */

/* Attention of one query head: softmax of its scores over the keys, then the weighted values. */
__attribute__((always_inline)) static inline void attend(const float *q, const float *keys, const float *values,
                                                         const int32_t *slots, int64_t count, float *scores,
                                                         const int size, float *out) {
    vec4 query[MAX_HEAD / 4], mixed[MAX_HEAD / 4];
#pragma GCC unroll 16
    for (int d = 0; d < size / 4; d++) query[d] = *(const vec4 *)(q + 4 * d), mixed[d] = (vec4){0};
    for (int64_t i = 0; i < count; i++) {
        const float *key = keys + (int64_t)slots[i] * size;
        const float *later = keys + (int64_t)slots[i + AHEAD < count ? i + AHEAD : i] * size;
        vec4 even = {0}, odd = {0};
#pragma GCC unroll 16
        for (int d = 0; d < size / 4; d += 2) {
            even = fused4(query[d], *(const vec4 *)(key + 4 * d), even);
            odd = fused4(query[d + 1], *(const vec4 *)(key + 4 * d + 4), odd);
        }
        for (int d = 0; d < size; d += 16) __builtin_prefetch(later + d);
        even += odd;
        scores[i] = (even[0] + even[1]) + (even[2] + even[3]);
    }
    for (int64_t i = count; i % LANES; i++) scores[i] = -INFINITY;
    vec totals = {0}, tops = *(vec *)scores;
    for (int64_t i = LANES; i < count; i += LANES) {
        vec here = *(vec *)(scores + i);
        tops = (vec)(((ivec)(here > tops) & (ivec)here) | (~(ivec)(here > tops) & (ivec)tops));
    }
    float top = tops[0];
    for (int j = 1; j < LANES; j++) top = tops[j] > top ? tops[j] : top;
    for (int64_t i = 0; i < count; i += LANES) {
        vec w = vexp(*(vec *)(scores + i) - top);
        *(vec *)(scores + i) = w;
        if (i + LANES <= count) totals += w;
    }
    float total = 0;
    for (int j = 0; j < LANES; j++) total += totals[j];
    for (int64_t i = count / LANES * LANES; i < count; i++) total += scores[i];
    for (int64_t i = 0; i < count; i++) {
        const float *value = values + (int64_t)slots[i] * size;
        const float *later = values + (int64_t)slots[i + AHEAD < count ? i + AHEAD : i] * size;
        vec4 weight = splat4(scores[i]);
#pragma GCC unroll 16
        for (int d = 0; d < size / 4; d++) mixed[d] = fused4(weight, *(const vec4 *)(value + 4 * d), mixed[d]);
        for (int d = 0; d < size; d += 16) __builtin_prefetch(later + d);
    }
#pragma GCC unroll 16
    for (int d = 0; d < size / 4; d++) *(vec4 *)(out + 4 * d) = mixed[d] / total;
}

static void attend_any(const float *q, const float *keys, const float *values, const int32_t *slots, int64_t count,
                       float *scores, int size, float *out) {
    switch (size) { /* constants, so that loops over a head are unrolled */
    case 8: attend(q, keys, values, slots, count, scores, 8, out); break;
    case 16: attend(q, keys, values, slots, count, scores, 16, out); break;
    case 32: attend(q, keys, values, slots, count, scores, 32, out); break;
    case 64: attend(q, keys, values, slots, count, scores, 64, out); break;
    default: attend(q, keys, values, slots, count, scores, size, out);
    }
}

static void rotate(float *head, int64_t size, const float *cosines, const float *sines) {
    for (int64_t i = 0, half = size / 2; i < half; i++) {
        float a = head[i], b = head[i + half];
        head[i] = a * cosines[i] - b * sines[i];
        head[i + half] = b * cosines[i] + a * sines[i];
    }
}

static void activate(float *gate_up, int64_t width, int gelu) { /* gate, then up: both of `width`, padded */
    for (int64_t i = 0; i < width; i += LANES) {
        vec g = *(vec *)(gate_up + i), up = *(vec *)(gate_up + width + i);
        vec inner = g;
        if (gelu) inner = 1.5957691216057308f * (g + 0.044715f * g * g * g); /* tanh by way of exp */
        *(vec *)(gate_up + i) = g / (1.0f + vexp(-inner)) * up;
    }
}

static void run_layer(const Model *m, const Layer *layer, Row **rows, int64_t count, Scratch *s) {
    int64_t size = m->head_size, half = size / 2, turned = m->heads + m->kv_heads, plane = m->slots * size;
    for (int64_t r = 0; r < count; r++)
        rms_norm(s->x + r * m->width, m->width, layer->attention_norm, m->eps, s->normed + r * m->width);
    multiply_rows(count, s->normed, m->width, layer->qkv, s->qkv_width, layer->qkv_bias, 0, s->heads);
    for (int64_t r = 0; r < count; r++) {
        Row *row = rows[r];
        float *heads = s->heads + r * s->qkv_width;
        for (int64_t h = 0; h < turned; h++) {
            if (layer->qk_norm) rms_norm(heads + h * size, size, layer->qk_norm + h * size, m->eps, heads + h * size);
            rotate(heads + h * size, size, m->cosines + row->position * half, m->sines + row->position * half);
        }
        int64_t slot = row->slots[row->position];
        for (int64_t k = 0; k < m->kv_heads; k++) {
            memcpy(layer->kv + k * plane + slot * size, heads + (m->heads + k) * size, size * sizeof(float));
            memcpy(layer->kv + (m->kv_heads + k) * plane + slot * size, heads + (turned + k) * size,
                   size * sizeof(float));
        }
        for (int64_t i = 0; i < m->heads * size; i++) heads[i] *= m->scale;
        int64_t seen = row->position + 1, from = layer->window && layer->window < seen ? seen - layer->window : 0;
        for (int64_t h = 0; h < m->heads; h++) {
            int64_t k = h / (m->heads / m->kv_heads);
            attend_any(heads + h * size, layer->kv + k * plane, layer->kv + (m->kv_heads + k) * plane,
                       row->slots + from, seen - from, s->scores, (int)size, s->mixed + (r * m->heads + h) * size);
        }
    }
    multiply_rows(count, s->mixed, m->heads * size, layer->out, m->width, layer->out_bias, 1, s->x);
    for (int64_t r = 0; r < count; r++)
        rms_norm(s->x + r * m->width, m->width, layer->mlp_norm, m->eps, s->normed + r * m->width);
    multiply_rows(count, s->normed, m->width, layer->gate_up, 2 * s->mlp_panels, layer->gate_up_bias, 0, s->gate_up);
    for (int64_t r = 0; r < count; r++) {
        activate(s->gate_up + r * 2 * s->mlp_panels, s->mlp_panels, (int)m->gelu);
        memmove(s->gate_up + r * s->mlp_panels, s->gate_up + r * 2 * s->mlp_panels, s->mlp_panels * sizeof(float));
    }
    multiply_rows(count, s->gate_up, s->mlp_panels, layer->down, m->width, layer->down_bias, 1, s->x);
}

static uint64_t splitmix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* As sampler.sample_tokens: inverts the cumulative distribution, in float64. */
static int32_t sample(const Row *row, float *logits, int64_t vocab, float *logprob) {
    int64_t best = 0, token = vocab - 1;
    for (int64_t i = 0; i < vocab; i++) {
        if (row->temperature != 0 && row->temperature != 1) logits[i] = logits[i] / row->temperature;
        if (logits[i] > logits[best]) best = i;
    }
    float top = logits[best];
    double total = 0, reached = 0;
    for (int64_t i = 0; i < vocab; i++) total += (double)expf(logits[i] - top);
    if (row->temperature == 0) {
        token = best;
    } else {
        uint64_t bits = splitmix(row->rng_key + 0x9E3779B97F4A7C15u * (uint64_t)(row->drawn + 1));
        double goal = (double)(bits >> 11) * 0x1p-53 * total;
        for (int64_t i = 0; i < vocab; i++) {
            reached += (double)expf(logits[i] - top);
            if (reached > goal) {
                token = i;
                break;
            }
        }
        if (!(expf(logits[token] - top) > 0)) token = best;
    }
    *logprob = logits[token] - top - (float)log(total);
    return (int32_t)token;
}

static void run_block(Job *job, int64_t first, Scratch *s) {
    const Model *m = job->model;
    Row *rows[MAX_BLOCK];
    int64_t places[MAX_BLOCK], count = 0, last = first + job->block;
    for (int64_t i = first; i < last && i < job->count; i++)
        if (job->logits || job->rows[i].left > 0) places[count] = i, rows[count++] = job->rows + i;
    for (int64_t step = 0; step < job->steps && count; step++) {
        for (int64_t r = 0; r < count; r++)
            memcpy(s->x + r * m->width, m->embedding + rows[r]->token * m->width, m->width * sizeof(float));
        for (int64_t l = 0; l < m->layers; l++) run_layer(m, m->layer + l, rows, count, s);
        for (int64_t r = 0; r < count; r++)
            rms_norm(s->x + r * m->width, m->width, m->norm, m->eps, s->normed + r * m->width);
        multiply_rows(count, s->normed, m->width, m->head, s->vocab_panels, NULL, 0, s->logits);
        int64_t kept = 0;
        for (int64_t r = 0; r < count; r++) {
            Row *row = rows[r];
            float *logits = s->logits + r * s->vocab_panels;
            if (job->logits) {
                memcpy(job->logits + places[r] * m->vocab, logits, m->vocab * sizeof(float));
                continue;
            }
            int64_t at = places[r] * job->steps + step;
            row->token = job->tokens[at] = sample(row, logits, m->vocab, job->logprobs + at);
            row->drawn++, row->position++, row->left--;
            if (row->left > 0 && !row->ends[row->token] && isfinite(job->logprobs[at]))
                rows[kept] = row, places[kept++] = places[r];
        }
        count = kept;
    }
}

static void *work(void *given) {
    Job *job = given;
    const Model *m = job->model;
    Scratch s = {0};
    int64_t longest = 0, inner = m->heads * m->head_size;
    for (int64_t i = 0; i < job->count; i++)
        if (job->rows[i].position > longest) longest = job->rows[i].position;
    s.qkv_width = padded((m->heads + 2 * m->kv_heads) * m->head_size);
    s.mlp_panels = padded(m->mlp_width), s.vocab_panels = padded(m->vocab);
    s.room = longest + job->steps + 2 * PANEL;
    int64_t each = 2 * m->width + s.qkv_width + inner + 2 * s.mlp_panels + s.vocab_panels;
    float *memory = calloc(MAX_BLOCK * each + s.room, sizeof(float));
    if (!memory) {
        atomic_store(&job->failed, 1);
        return NULL;
    }
    s.x = memory, s.normed = s.x + MAX_BLOCK * m->width, s.heads = s.normed + MAX_BLOCK * m->width;
    s.mixed = s.heads + MAX_BLOCK * s.qkv_width, s.gate_up = s.mixed + MAX_BLOCK * inner;
    s.logits = s.gate_up + MAX_BLOCK * 2 * s.mlp_panels, s.scores = s.logits + MAX_BLOCK * s.vocab_panels;
    for (;;) {
        int64_t first = atomic_fetch_add(&job->next, 1) * job->block;
        if (first >= job->count) break;
        run_block(job, first, &s);
    }
    free(memory);
    return NULL;
}

/* Runs `steps` steps of all rows. Returns 0, or 1 where memory ran out. */
int decode(const Model *model, Row *rows, int64_t count, int64_t steps, int64_t threads, int32_t *tokens,
           float *logprobs, float *logits) {
    Job job = {.model = model, .rows = rows, .count = count, .steps = logits ? 1 : steps, .tokens = tokens,
               .logprobs = logprobs, .logits = logits};
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    int64_t share = (count + 2 * threads - 1) / (2 * threads); /* two blocks for each thread, which may be held up */
    job.block = (share + ROWS - 1) / ROWS * ROWS;
    if (job.block > MAX_BLOCK) job.block = MAX_BLOCK;
    int64_t blocks = (count + job.block - 1) / job.block, started = 0;
    if (threads > blocks) threads = blocks;
    pthread_t others[MAX_THREADS];
    while (started < threads - 1 && !pthread_create(others + started, NULL, work, &job)) started++;
    work(&job);
    for (int64_t i = 0; i < started; i++) pthread_join(others[i], NULL);
    return atomic_load(&job.failed);
}
