/* A layer of LSTM or GRU through time on a CPU: each row until its rule fires, and back from there. See steps.h.

Plain C with the vector types of GCC and Clang, called from Python with ctypes. */

#include <string.h>

#include "job.h"

#ifdef __x86_64__
#include <xmmintrin.h>
#endif

enum { RELU, TANH, SIGMOID };

typedef struct {
    int64_t input, hidden, bias, recall, back, inner, inner_bias, last, last_bias, end;
} Offsets;

/* Where each part of the packed weights begins. */
static inline Offsets packed_offsets(const Job *job) {
    const int64_t gates = job->gru ? 3 : 4;
    Offsets found;
    found.input = 0;
    found.hidden = found.input + job->inputs * gates * job->padded;
    found.bias = found.hidden + job->units * gates * job->padded;
    found.recall = found.bias + gates * job->padded;
    found.inner = found.recall + job->padded;
    found.inner_bias = found.inner + job->units * job->padded_inner;
    found.last = found.inner_bias + job->padded_inner;
    found.last_bias = found.last + (job->inner ? job->inner : job->units) * job->padded_classes;
    found.back = found.last_bias + job->padded_classes; /* last, because inference does without */
    found.end = found.back + gates * job->padded * job->padded;
    return found;
}

/* What is kept of a step: input gate, forget gate, candidate and output gate (for a GRU the contribution of the hidden
   state to the candidate, reset gate, update gate and candidate), replaced by their gradients in the backward pass; the
   hidden state before and, for an LSTM, the cell before. */
static inline float *entry_at(const Job *job, int64_t entry) {
    return job->chunks[entry >> job->shift] + (entry & (((int64_t)1 << job->shift) - 1)) * job->width;
}

static inline float *features_at(const Job *job, int64_t row, int64_t step) {
    return job->features + row * job->row_stride + step * job->step_stride;
}

/* Outputs are divided into panels of 4 vectors, then 2, then 1. */
static inline int64_t panel_vectors(int64_t left) { return left >= 4 ? 4 : left >= 2 ? 2 : 1; }

typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t FourPlaces __attribute__((vector_size(16)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (FourPlaces){__VA_ARGS__})
#endif

/* The weights [outputs, size] of `lanes` outputs from `first` on, as [size][lanes] with a stride; 0 for other outputs. */
static void pack_lanes(const float *weights, int64_t first, int64_t outputs, int64_t size, int64_t lanes, float *to,
                       int64_t stride) {
    for (int64_t lane = 0; lane < lanes; lane += 4, to += 4) {
        const int64_t output = first + lane;
        int64_t each = 0;
        if (output >= 0 && output + 4 <= outputs)
            for (const float *from = weights + output * size; each + 4 <= size; each += 4) { /* transpose 4 × 4 */
                const Four a = *(const Four *)(from + each), b = *(const Four *)(from + size + each);
                const Four c = *(const Four *)(from + 2 * size + each), d = *(const Four *)(from + 3 * size + each);
                const Four low = SHUFFLE(a, b, 0, 4, 1, 5), high = SHUFFLE(a, b, 2, 6, 3, 7);
                const Four lower = SHUFFLE(c, d, 0, 4, 1, 5), higher = SHUFFLE(c, d, 2, 6, 3, 7);
                float *out = to + each * stride;
                *(Four *)out = SHUFFLE(low, lower, 0, 1, 4, 5);
                *(Four *)(out + stride) = SHUFFLE(low, lower, 2, 3, 6, 7);
                *(Four *)(out + 2 * stride) = SHUFFLE(high, higher, 0, 1, 4, 5);
                *(Four *)(out + 3 * stride) = SHUFFLE(high, higher, 2, 3, 6, 7);
            }
        for (; each < size; each++)
            for (int64_t k = output; k < output + 4; k++)
                to[each * stride + k - output] = k >= 0 && k < outputs ? weights[k * size + each] : 0.0f;
    }
}

/* A cell's weights [gates · units, size], a panel for all gates of each vector of units. */
static void pack_gates(const Job *job, const float *weights, int64_t size, float *to) {
    const int64_t gates = job->gru ? 3 : 4, width = gates * job->lanes;
    for (int64_t unit = 0; unit < job->padded; unit += job->lanes, to += size * width)
        for (int64_t gate = 0; gate < gates; gate++)
            pack_lanes(weights + gate * job->units * size, unit, job->units, size, job->lanes, to + gate * job->lanes,
                       width);
}

/* The weights [outputs, size] of a layer, from the output `first` on, and its bias; `fill`: the bias past the last. */
static void pack_layer(const Job *job, const float *weights, const float *bias, int64_t first, int64_t outputs,
                       int64_t padded, int64_t size, float fill, float *to, float *to_bias) {
    for (int64_t begin = 0, width; begin < padded; begin += width, to += size * width) {
        width = panel_vectors((padded - begin) / job->lanes) * job->lanes;
        pack_lanes(weights, begin - first, outputs, size, width, to, width);
        for (int64_t k = begin; k < begin + width; k++)
            to_bias[k] = k < first ? 0.0f : k - first < outputs ? bias[k - first] : fill;
    }
}

/* The recurrent weights for the backward pass: from the gradients of the gates to that of the hidden state. */
static void pack_back(const Job *job, float *to) {
    const int64_t gates = job->gru ? 3 : 4, units = job->units, padded = job->padded;
    for (int64_t begin = 0, width; begin < padded; begin += width) {
        width = panel_vectors((padded - begin) / job->lanes) * job->lanes;
        for (int64_t k = 0; k < gates * padded; k++, to += width) {
            int64_t gate = job->gru ? (k / padded + 2) % 3 : k / padded, unit = k % padded; /* a GRU's candidate is first */
            int64_t real = unit < units ? units - begin : 0;
            real = real < 0 ? 0 : real > width ? width : real;
            memcpy(to, job->weight_hh + (gate * units + unit) * units * (real > 0) + begin * (real > 0), real * sizeof(float));
            memset(to + real, 0, (width - real) * sizeof(float));
        }
    }
}

int64_t job_size(void) { return sizeof(Job); }

/* The number of floats of the packed weights. */
int64_t packed_size(const Job *job, int64_t save) { return save ? packed_offsets(job).end : packed_offsets(job).back; }

void pack(const Job *job, int64_t save) {
    const Offsets at = packed_offsets(job);
    const int64_t gates = job->gru ? 3 : 4, units = job->units, width = gates * job->lanes;
    float *packed = job->packed;
    pack_gates(job, job->weight_ih, job->inputs, packed + at.input);
    pack_gates(job, job->weight_hh, units, packed + at.hidden);
    memset(packed + at.bias, 0, (gates + 1) * job->padded * sizeof(float));
    for (int64_t gate = 0; gate < gates; gate++)
        for (int64_t unit = 0; unit < units; unit++) {
            float *to = packed + at.bias + unit / job->lanes * width + gate * job->lanes + unit % job->lanes;
            float recall = job->bias_hh[gate * units + unit];
            *to = job->bias_ih[gate * units + unit];
            if (job->gru && gate == 2) packed[at.recall + unit] = recall; /* the reset gate multiplies it */
            else *to += recall;
        }
    if (job->inner)
        pack_layer(job, job->inner_weight, job->inner_bias, 0, job->inner, job->padded_inner, units, 0.0f,
                   packed + at.inner, packed + at.inner_bias);
    if (job->classes) /* one output z is the logits (0, z); classes past the last have a probability of 0 */
        pack_layer(job, job->last_weight, job->last_bias, job->one_output, job->classes - job->one_output,
                   job->padded_classes, job->inner ? job->inner : units, -1e30f, packed + at.last, packed + at.last_bias);
    if (save) pack_back(job, packed + at.back);
}

/* The inputs, a 1 and the hidden state before `count` entries, for the gradients of the weights. */
void gather(const Job *job, int64_t first, int64_t count, float *to) {
    for (int64_t entry = first; entry < first + count; entry++) {
        memcpy(to, job->x + job->place[entry] * job->inputs, job->inputs * sizeof(float));
        to += job->inputs;
        *to++ = 1.0f;
        memcpy(to, entry_at(job, entry) + 4 * job->padded, job->units * sizeof(float));
        to += job->units;
    }
}

#ifdef __x86_64__
#define NAME(name) name##_avx512
#define TARGET __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma")))
#define LANES 16
#define TILE 6
#include "steps.h"
#undef NAME
#undef TARGET
#undef LANES
#undef TILE

#define NAME(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#define TILE 3
#include "steps.h"
#undef NAME
#undef TARGET
#undef LANES
#undef TILE
#endif

#define NAME(name) name##_any
#define TARGET
#define LANES 4
#ifdef __aarch64__
#define TILE 6
#else
#define TILE 3
#endif
#include "steps.h"

/* The most numbers of a vector that this processor has. */
int64_t most_lanes(void) {
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return 16;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 8;
#endif
    return 4;
}

static void read_rows(Job *job) {
#ifdef __x86_64__
    if (job->lanes == 16) forward_avx512(job);
    else if (job->lanes == 8) forward_avx2(job);
    else
#endif
        forward_any(job);
}

static void go_back(Job *job) {
#ifdef __x86_64__
    if (job->lanes == 16) backward_avx512(job);
    else if (job->lanes == 8) backward_avx2(job);
    else
#endif
        backward_any(job);
}

typedef struct {
    void (*work)(Job *);
    Job *const *jobs;
    int64_t count, next;
} Team;

/* Take jobs of a team until there are none left. Denormal numbers are flushed to zero. */
static void take_jobs(void *data) {
    Team *team = data;
#ifdef __x86_64__
    unsigned int before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
#endif
    for (int64_t next; (next = __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED)) < team->count;)
        team->work(team->jobs[next]);
#ifdef __x86_64__
    _mm_setcsr(before);
#endif
}

/* `parallel` is GOMP_parallel of the OpenMP library that PyTorch uses, so that PyTorch's own threads run the jobs. They
   wait actively for some milliseconds after PyTorch's operations; other threads would have to share the cores with them. */
typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);

static void run_jobs(void (*work)(Job *), Job *const *jobs, int64_t count, Parallel parallel) {
    Team team = {work, jobs, count, 0};
    if (count > 1 && parallel != NULL) parallel(take_jobs, &team, (unsigned)count, 0);
    else take_jobs(&team);
}

/* Read the rows of all jobs until they have answered, or a job is `full`. */
void read_all(Job *const *jobs, int64_t count, Parallel parallel) { run_jobs(read_rows, jobs, count, parallel); }

/* From the answers of all jobs to their first steps. */
void go_back_all(Job *const *jobs, int64_t count, Parallel parallel) { run_jobs(go_back, jobs, count, parallel); }
