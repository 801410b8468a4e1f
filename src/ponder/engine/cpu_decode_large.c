/* Decoding steps of a large decoder on a CPU, float32 or bfloat16, for few rows: the layers, the cache and sampling.
 *
 * Its time is that of reading the weights, so they are read where torch keeps them, [outputs, inputs], once in each
 * step. All threads compute the same step: the outputs of a product, or the heads of attention, are taken in chunks by
 * whichever thread is free, and threads meet after each. A row is computed by itself: no sum depends on which other
 * rows there are, or on how many threads. Keys and values are [2, heads, slots, head size].
 */
#include "cpu_decode.h"

#define TILE 4 /* outputs that are computed together */
#if LANES == 8
#define MAX_TILE_ROWS 2 /* 16 registers */
#else
#define MAX_TILE_ROWS 4
#endif
#define LINE 16      /* inputs that are read between two fetches; all are a multiple */
#define MAX_CHUNK 64 /* outputs */
#define SPINS 4096   /* before a thread sleeps until the others have come */

typedef struct {
    const number *weight, *bias; /* a bias may be null */
    int64_t outputs;
} Linear;

typedef struct {
    const number *attention_norm, *mlp_norm, *q_norm, *k_norm; /* the last two may be null */
    Linear q, k, v, out, gate, up, down;
    number *kv;
    int64_t window; /* tokens back that a token sees, itself included; 0: all */
} LargeLayer;

typedef struct {
    int64_t layers, width, heads, kv_heads, head_size, mlp_width, vocab, slots, gelu;
    float eps, scale;
    const number *embedding, *norm, *head;
    const float *cosines, *sines; /* [positions][head size / 2] */
    const LargeLayer *layer;
} LargeModel;

typedef struct {
    const LargeModel *model;
    Row **rows;      /* those that still sample */
    int64_t *places; /* of them among all rows */
    int64_t count, steps, threads;
    int32_t *tokens; /* [all rows, steps] */
    float *logprobs; /* [all rows, steps] */
    float *given;    /* [all rows, vocab], for logits: one step without sampling; null: sample */
    float *x, *heads, *mixed, *inner, *logits;
    int64_t heads_width, vocab_width;
    pthread_mutex_t lock;
    pthread_cond_t met;
    atomic_long next; /* chunk */
    atomic_long arrived, meetings;
} Team;

static inline void pause_spin(void) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* Waits for the other threads. What any of them wrote before is seen by all of them after. */
static void meet(Team *t) {
    if (t->threads == 1) {
        atomic_store_explicit(&t->next, 0, memory_order_relaxed);
        return;
    }
    long meeting = atomic_load(&t->meetings);
    if (atomic_fetch_add(&t->arrived, 1) + 1 == t->threads) {
        atomic_store(&t->arrived, 0), atomic_store(&t->next, 0);
        pthread_mutex_lock(&t->lock);
        atomic_fetch_add(&t->meetings, 1);
        pthread_cond_broadcast(&t->met);
        pthread_mutex_unlock(&t->lock);
        return;
    }
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&t->meetings, memory_order_acquire) != meeting) return;
        pause_spin();
    }
    pthread_mutex_lock(&t->lock);
    while (atomic_load(&t->meetings) == meeting) pthread_cond_wait(&t->met, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

typedef float Sums[MAX_TILE_ROWS][TILE];

/* sums[rows][tile] of x[rows, inputs] and rows of a matrix, of which the next are fetched meanwhile. A sum adds
 * whole vectors in the order of the inputs, then the numbers of a vector, whatever `rows` and `tile` are. */
__attribute__((always_inline)) static inline void dot(const int rows, const int tile, const float *x, int64_t inputs,
                                                      const number *weight, Sums sums) {
    vec sum[MAX_TILE_ROWS][TILE];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int o = 0; o < tile; o++) sum[r][o] = (vec){0};
    for (int64_t k = 0; k < inputs; k += LINE) {
#pragma GCC unroll 4
        for (int i = 0; i < tile * (int)sizeof(number) / 4; i++)
            __builtin_prefetch(weight + tile * (inputs + k) + i * (64 / sizeof(number)), 0, 2);
#pragma GCC unroll 4
        for (int64_t i = k; i < k + LINE; i += LANES) {
            vec w[TILE];
#pragma GCC unroll 4
            for (int o = 0; o < tile; o++) w[o] = load(weight + o * inputs + i);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                vec here = *(const vec *)(x + r * inputs + i);
#pragma GCC unroll 4
                for (int o = 0; o < tile; o++) sum[r][o] = fused(here, w[o], sum[r][o]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int o = 0; o < tile; o++) {
            float part[LANES];
            memcpy(part, &sum[r][o], sizeof part);
            for (int half = LANES / 2; half; half /= 2)
                for (int j = 0; j < half; j++) part[j] += part[j + half];
            sums[r][o] = part[0];
        }
}

/* One function for each number of rows, so that its sums stay in registers. */
#define DOT_OF(rows, tile)                                                                                          \
    __attribute__((noinline)) static void dot_##rows##_##tile(const float *x, int64_t inputs, const number *weight, \
                                                              Sums sums) {                                          \
        dot(rows, tile, x, inputs, weight, sums);                                                                   \
    }
DOT_OF(1, 1)
DOT_OF(1, 4)
DOT_OF(2, 4)
#if MAX_TILE_ROWS == 4
DOT_OF(3, 4)
DOT_OF(4, 4)
#endif

static void dot_any(int rows, int tile, const float *x, int64_t inputs, const number *weight, Sums sums) {
    if (tile < TILE) {
        for (int r = 0; r < rows; r++)
            for (int o = 0; o < tile; o++) {
                Sums one;
                dot_1_1(x + r * inputs, inputs, weight + o * inputs, one);
                sums[r][o] = one[0][0];
            }
    } else if (rows == 1) {
        dot_1_4(x, inputs, weight, sums);
    } else if (rows == 2) {
        dot_2_4(x, inputs, weight, sums);
#if MAX_TILE_ROWS == 4
    } else if (rows == 3) {
        dot_3_4(x, inputs, weight, sums);
    } else {
        dot_4_4(x, inputs, weight, sums);
#endif
    }
}

/* out[rows, from..to] = x[rows, inputs] times rows of a matrix, plus a bias or what is in `out`. */
static void multiply(int64_t rows, const float *x, int64_t inputs, Linear linear, int64_t from, int64_t to, int add,
                     float *out, int64_t stride) {
    for (int64_t at = from; at < to; at += TILE) {
        int tile = to - at < TILE ? (int)(to - at) : TILE;
        for (int64_t r = 0; r < rows; r += MAX_TILE_ROWS) {
            int some = rows - r < MAX_TILE_ROWS ? (int)(rows - r) : MAX_TILE_ROWS;
            Sums sums;
            dot_any(some, tile, x + r * inputs, inputs, linear.weight + at * inputs, sums);
            for (int i = 0; i < some; i++)
                for (int o = 0; o < tile; o++) {
                    float *here = out + (r + i) * stride + at + o, sum = sums[i][o];
                    if (linear.bias) sum += to_float(linear.bias[at + o]);
                    *here = add ? rounded(*here + rounded(sum)) : rounded(sum);
                }
        }
    }
}

/* The next chunk of `outputs` that no thread has taken. */
static int take(Team *t, int64_t outputs, int64_t *from, int64_t *to) {
    int64_t chunk = (outputs / (4 * t->threads) + TILE - 1) / TILE * TILE;
    if (chunk > MAX_CHUNK) chunk = MAX_CHUNK;
    if (chunk < TILE) chunk = TILE;
    *from = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed) * chunk;
    *to = *from + chunk < outputs ? *from + chunk : outputs;
    return *from < outputs;
}

/* The products of several matrices with one input, side by side. */
static void multiply_all(Team *t, const float *x, int64_t inputs, const Linear *linears, int linear_count, int add,
                         float *out, int64_t stride) {
    int64_t outputs = 0, from, to;
    for (int i = 0; i < linear_count; i++) outputs += linears[i].outputs;
    while (take(t, outputs, &from, &to)) {
        int64_t start = 0;
        for (int i = 0; i < linear_count; start += linears[i++].outputs) {
            int64_t low = from > start ? from - start : 0, high = to - start;
            if (high > linears[i].outputs) high = linears[i].outputs;
            if (low < high) multiply(t->count, x, inputs, linears[i], low, high, add, out + start, stride);
        }
    }
}

static void multiply_mlp(Team *t, const float *x, const LargeLayer *layer, float *up) {
    const LargeModel *m = t->model;
    int64_t width = m->mlp_width, from, to;
    while (take(t, width, &from, &to)) {
        multiply(t->count, x, m->width, layer->gate, from, to, 0, t->inner, width);
        multiply(t->count, x, m->width, layer->up, from, to, 0, up - from, MAX_CHUNK);
        for (int64_t r = 0; r < t->count; r++)
            for (int64_t i = from; i < to; i += LANES) {
                vec gate = {0}, other = {0};
                size_t bytes = (to - i < LANES ? to - i : LANES) * sizeof(float);
                memcpy(&gate, t->inner + r * width + i, bytes);
                memcpy(&other, up + r * MAX_CHUNK + i - from, bytes);
                gate = activate(gate, other, (int)m->gelu);
                memcpy(t->inner + r * width + i, &gate, bytes);
            }
    }
}

/* Attention of one row by the query heads of one key head, whose newest key and value are written first. */
static void attend_group(Team *t, const LargeLayer *layer, int64_t r, int64_t k, float *scores) {
    const LargeModel *m = t->model;
    const Row *row = t->rows[r];
    int64_t size = m->head_size, half = size / 2, plane = m->slots * size, group = m->heads / m->kv_heads;
    const float *cosines = m->cosines + row->position * half, *sines = m->sines + row->position * half;
    float *heads = t->heads + r * t->heads_width, *key = heads + (m->heads + k) * size;
    number *keys = layer->kv + k * plane, *values = layer->kv + (m->kv_heads + k) * plane;
    int64_t slot = row->slots[row->position], seen = row->position + 1;
    int64_t from = layer->window && layer->window < seen ? seen - layer->window : 0;
    if (layer->k_norm) rms_norm(key, size, layer->k_norm, m->eps, key);
    rotate(key, size, cosines, sines);
    for (int64_t i = 0; i < size; i++) {
        keys[slot * size + i] = to_number(key[i]);
        values[slot * size + i] = to_number(heads[(m->heads + m->kv_heads + k) * size + i]);
    }
    for (int64_t h = k * group; h < (k + 1) * group; h++) {
        float *query = heads + h * size;
        if (layer->q_norm) rms_norm(query, size, layer->q_norm, m->eps, query);
        rotate(query, size, cosines, sines);
        for (int64_t i = 0; i < size; i++) query[i] *= m->scale;
        attend_any(query, keys, values, row->slots + from, seen - from, scores, (int)size,
                   t->mixed + (r * m->heads + h) * size);
        for (int64_t i = (r * m->heads + h) * size, end = i + size; i < end; i++) t->mixed[i] = rounded(t->mixed[i]);
    }
}

static void run_large_layer(Team *t, const LargeLayer *layer, float *normed, float *up, float *scores) {
    const LargeModel *m = t->model;
    for (int64_t r = 0; r < t->count; r++)
        rms_norm(t->x + r * m->width, m->width, layer->attention_norm, m->eps, normed + r * m->width);
    const Linear qkv[3] = {layer->q, layer->k, layer->v};
    multiply_all(t, normed, m->width, qkv, 3, 0, t->heads, t->heads_width);
    meet(t);
    for (int64_t i; (i = atomic_fetch_add(&t->next, 1)) < t->count * m->kv_heads;)
        attend_group(t, layer, i / m->kv_heads, i % m->kv_heads, scores);
    meet(t);
    multiply_all(t, t->mixed, m->heads * m->head_size, &layer->out, 1, 1, t->x, m->width);
    meet(t);
    for (int64_t r = 0; r < t->count; r++)
        rms_norm(t->x + r * m->width, m->width, layer->mlp_norm, m->eps, normed + r * m->width);
    multiply_mlp(t, normed, layer, up);
    meet(t);
    multiply_all(t, t->inner, m->mlp_width, &layer->down, 1, 1, t->x, m->width);
    meet(t);
}

/* After sampling, by one thread: which rows go on. */
static void keep_rows(Team *t, int64_t step) {
    int64_t kept = 0;
    for (int64_t r = 0; r < t->count; r++) {
        Row *row = t->rows[r];
        int64_t at = t->places[r] * t->steps + step;
        row->token = t->tokens[at], row->drawn++, row->position++, row->left--;
        if (row->left > 0 && !row->ends[row->token] && isfinite(t->logprobs[at]))
            t->rows[kept] = row, t->places[kept++] = t->places[r];
    }
    t->count = kept;
}

static void run_steps(Team *t, int leads, float *normed, float *up, float *scores, double *sums) {
    const LargeModel *m = t->model;
    const Linear head = {m->head, NULL, m->vocab};
    for (int64_t step = 0; step < t->steps; step++) {
        if (leads)
            for (int64_t r = 0; r < t->count; r++)
                for (int64_t i = 0; i < m->width; i++)
                    t->x[r * m->width + i] = to_float(m->embedding[t->rows[r]->token * m->width + i]);
        meet(t);
        if (!t->count) return;
        for (int64_t l = 0; l < m->layers; l++) run_large_layer(t, m->layer + l, normed, up, scores);
        for (int64_t r = 0; r < t->count; r++)
            rms_norm(t->x + r * m->width, m->width, m->norm, m->eps, normed + r * m->width);
        multiply_all(t, normed, m->width, &head, 1, 0, t->logits, t->vocab_width);
        meet(t);
        for (int64_t r; (r = atomic_fetch_add(&t->next, 1)) < t->count;) {
            float *logits = t->logits + r * t->vocab_width;
            int64_t at = t->places[r] * t->steps + step;
            if (t->given)
                memcpy(t->given + t->places[r] * m->vocab, logits, m->vocab * sizeof(float));
            else
                t->tokens[at] = sample(t->rows[r], logits, m->vocab, sums, t->logprobs + at);
        }
        meet(t);
        if (leads && !t->given) keep_rows(t, step);
    }
}

typedef struct {
    Team *team;
    float *normed, *up, *scores;
    double *sums;
} Member;

static void *join_team(void *given) {
    Member *own = given;
    pthread_mutex_lock(&own->team->lock); /* until it is known how many they are */
    pthread_mutex_unlock(&own->team->lock);
    run_steps(own->team, 0, own->normed, own->up, own->scores, own->sums);
    return NULL;
}

/* Runs `steps` steps of all rows. Returns 0, or 1 where memory ran out. */
int decode_large(const LargeModel *model, Row *rows, int64_t count, int64_t steps, int64_t threads, int32_t *tokens,
                 float *logprobs, float *logits) {
    const LargeModel *m = model;
    Team team = {.model = m, .steps = logits ? 1 : steps, .tokens = tokens, .logprobs = logprobs, .given = logits,
                 .lock = PTHREAD_MUTEX_INITIALIZER, .met = PTHREAD_COND_INITIALIZER};
    Team *t = &team;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    int64_t longest = 0, inner = m->heads * m->head_size;
    for (int64_t i = 0; i < count; i++)
        if (rows[i].position > longest) longest = rows[i].position;
    t->heads_width = (m->heads + 2 * m->kv_heads) * m->head_size;
    t->vocab_width = (m->vocab + LANES - 1) / LANES * LANES;
    int64_t shared = count * (m->width + t->heads_width + inner + m->mlp_width + t->vocab_width);
    int64_t alone = count * (m->width + MAX_CHUNK) + longest + t->steps + 2 * LANES, sums = m->vocab / SUMMED + 1;
    float *memory = malloc((shared + threads * alone) * sizeof(float));
    double *all_sums = malloc(threads * sums * sizeof(double));
    t->rows = malloc(count * sizeof(Row *)), t->places = malloc(count * sizeof(int64_t));
    int failed = !memory || !all_sums || !t->rows || !t->places;
    if (!failed) {
        t->x = memory, t->heads = t->x + count * m->width, t->mixed = t->heads + count * t->heads_width;
        t->inner = t->mixed + count * inner, t->logits = t->inner + count * m->mlp_width;
        for (int64_t i = 0; i < count; i++)
            if (logits || rows[i].left > 0) t->places[t->count] = i, t->rows[t->count++] = rows + i;
        Member members[MAX_THREADS];
        pthread_t others[MAX_THREADS];
        for (int64_t i = 0; i < threads; i++) {
            float *own = memory + shared + i * alone;
            members[i] = (Member){t, own, own + count * m->width, own + count * (m->width + MAX_CHUNK),
                                  all_sums + i * sums};
        }
        t->threads = 1;
        pthread_mutex_lock(&t->lock);
        while (t->threads < threads && !pthread_create(others + t->threads, NULL, join_team, members + t->threads))
            t->threads++;
        pthread_mutex_unlock(&t->lock);
        run_steps(t, 1, members->normed, members->up, members->scores, members->sums);
        for (int64_t i = 1; i < t->threads; i++) pthread_join(others[i], NULL);
    }
    free(memory), free(all_sums), free(t->rows), free(t->places);
    return failed;
}
