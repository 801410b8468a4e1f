/* cpu_decode_large.c for bfloat16 weights, keys and values. */
#define BFLOAT16
#define decode_large decode_large_bfloat16
#include "cpu_decode_large.c"
