/* All layers of a decoding pass in one call, float32: the operations of cpu_layer_ops.c between the products of
 * cpu_products.c. Started one by one from Python they take a tenth longer. */
#include "cpu_numbers.h"

/* cpu_products.c */
void multiply(const float *x, int64_t rows, int64_t inputs, const float *packed, const float *bias, int64_t outputs,
              float *out, int64_t threads);
/* cpu_layer_ops.c */
void add_norm(float *x, const float *more, const float *weight, float *out, int64_t rows, int64_t width, float eps,
              int64_t threads);
void rotate(float *x, int64_t stride, const float *cosines, const float *sines, const float *q_norm,
            const float *k_norm, int64_t rows, int64_t heads, int64_t queries, int64_t size, float eps,
            int64_t threads);
void gate_and_multiply(const float *both, float *out, int64_t rows, int64_t width, int64_t gelu, int64_t threads);
void attend(const float *q, int64_t q_stride, const float *k, int64_t k_stride, const float *v, int64_t v_stride,
            float *kv, int64_t cache_slots, const int32_t *slots, int64_t columns, const int64_t *lengths, int64_t rows,
            int64_t heads, int64_t kv_heads, int64_t size, float scale, int64_t window, float *out, float *scratch,
            int64_t room, int64_t threads);

typedef struct {
    const float *packed, *bias; /* a bias may be null */
    int64_t outputs;
} Linear;

typedef struct {
    const float *attention_norm, *mlp_norm, *q_norm, *k_norm; /* the last two may be null */
    Linear qkv, out, gate_up, down;
    float *kv;
    int64_t window; /* tokens back that a token sees, itself included; 0: all */
} Layer;

typedef struct {
    int64_t layers, width, heads, kv_heads, head_size, mlp_width, slots, gelu;
    float eps, scale;
    const float *norm;
    const Layer *layer;
} Network;

/* The numbers that run_layers needs as a buffer. */
static int64_t numbers(const Network *n, int64_t rows) {
    return rows * (2 * n->width + (2 * n->heads + 2 * n->kv_heads) * n->head_size + 3 * n->mlp_width);
}
void count_numbers(const Network *n, int64_t rows, int64_t room, int64_t threads, int64_t *count) {
    *count = numbers(n, rows) + threads * room;
}

/* x [rows, width] goes through all layers, and its norm into `out`. Slots, lengths and room are as attend has them. */
void run_layers(const Network *n, float *x, int64_t rows, const float *cosines, const float *sines,
                const int32_t *slots, int64_t columns, const int64_t *lengths, int64_t room, float *buffer, float *out,
                int64_t threads) {
    int64_t size = n->head_size, inner = n->heads * size, keys = n->kv_heads * size, stride = inner + 2 * keys;
    float *normed = buffer, *more = normed + rows * n->width, *heads = more + rows * n->width;
    float *mixed = heads + rows * stride, *both = mixed + rows * inner, *gated = both + rows * 2 * n->mlp_width;
    float *scores = buffer + numbers(n, rows);
    for (int64_t l = 0; l < n->layers; l++) {
        const Layer *own = n->layer + l;
        add_norm(x, l ? more : NULL, own->attention_norm, normed, rows, n->width, n->eps, threads);
        multiply(normed, rows, n->width, own->qkv.packed, own->qkv.bias, own->qkv.outputs, heads, threads);
        rotate(heads, stride, cosines, sines, own->q_norm, own->k_norm, rows, n->heads + n->kv_heads, n->heads, size,
               n->eps, threads);
        attend(heads, stride, heads + inner, stride, heads + inner + keys, stride, own->kv, n->slots, slots, columns,
               lengths, rows, n->heads, n->kv_heads, size, n->scale, own->window, mixed, scores, room, threads);
        multiply(mixed, rows, inner, own->out.packed, own->out.bias, own->out.outputs, more, threads);
        add_norm(x, more, own->mlp_norm, normed, rows, n->width, n->eps, threads);
        multiply(normed, rows, n->width, own->gate_up.packed, own->gate_up.bias, own->gate_up.outputs, both, threads);
        gate_and_multiply(both, gated, rows, n->mlp_width, n->gelu, threads);
        multiply(gated, rows, n->mlp_width, own->down.packed, own->down.bias, own->down.outputs, more, threads);
    }
    add_norm(x, more, n->norm, out, rows, n->width, n->eps, threads);
}
