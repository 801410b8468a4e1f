/* Decoding steps of a small float32 decoder on a CPU: the layers, the cache and sampling, for many rows and steps.
 *
 * A row is computed by itself: no sum depends on which other rows there are, or on how many threads. Rows are taken by
 * threads in blocks, and a block runs all its steps before the next.
 *
 * Matrices are panels of 16 outputs, [outputs / 16][inputs][16]. Keys and values are [2, heads, slots, head size].
 */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-schedule-insns") /* on ARM it takes more registers than there are for the sums of `multiply` */
#endif
#include "cpu_decode.h"

#define PANEL 16
#define COLUMNS (PANEL / LANES)
#define MAX_BLOCK 32 /* rows, a multiple of ROWS */

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
    double *sums;
} Scratch;

static inline int64_t padded(int64_t n) { return (n + PANEL - 1) / PANEL * PANEL; }

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

static void activate_row(float *gate_up, int64_t width, int gelu) { /* gate, then up: both of `width`, padded */
    for (int64_t i = 0; i < width; i += LANES)
        *(vec *)(gate_up + i) = activate(*(vec *)(gate_up + i), *(vec *)(gate_up + width + i), gelu);
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
        activate_row(s->gate_up + r * 2 * s->mlp_panels, s->mlp_panels, (int)m->gelu);
        memmove(s->gate_up + r * s->mlp_panels, s->gate_up + r * 2 * s->mlp_panels, s->mlp_panels * sizeof(float));
    }
    multiply_rows(count, s->gate_up, s->mlp_panels, layer->down, m->width, layer->down_bias, 1, s->x);
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
            row->token = job->tokens[at] = sample(row, logits, m->vocab, s->sums, job->logprobs + at);
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
    s.sums = calloc(m->vocab / SUMMED + 1, sizeof(double));
    if (!memory || !s.sums) {
        free(memory), free(s.sums);
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
    free(memory), free(s.sums);
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
