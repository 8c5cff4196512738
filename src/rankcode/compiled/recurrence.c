/* Layers of LSTM or GRU through time on a CPU: each row until its rule fires, and back from there. See steps.h.

Plain C with the vector types of GCC and Clang, called from Python with ctypes. */

#include <sched.h>
#include <string.h>
#include <time.h>

#include "job.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { RELU, TANH, SIGMOID };
enum { ENTRIES = 128 }; /* at once for the gradients of the weights: a panel of their columns stays in the first cache */

typedef struct {
    int64_t input, hidden, bias, recall, back, back_input, inner, inner_bias, last, last_bias, end;
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
    found.back_input = found.back + gates * job->padded * job->padded;
    found.end = found.back_input + (job->lower != NULL ? gates * job->padded * job->padded : 0);
    return found;
}

/* What is kept of a step: input gate, forget gate, candidate and output gate (for a GRU the contribution of the hidden
   state to the candidate, reset gate, update gate and candidate), replaced by their gradients in the backward pass; the
   hidden state before and, for an LSTM, the cell before; in an upper layer the inputs. */
static inline float *entry_at(const Job *job, int64_t entry) {
    return job->chunks[entry >> job->shift] + (entry & (((int64_t)1 << job->shift) - 1)) * job->width + job->offset;
}

static inline float *kept_inputs(const Job *job, float *entry) { return entry + (job->gru ? 5 : 6) * job->padded; }

/* The job of a layer above, or NULL. */
static inline const Job *layer_at(const Job *job, int64_t level) {
    while (job != NULL && level-- > 0) job = job->upper;
    return job;
}

/* The sums of the gradients of a gate's weights: those of the inputs, the bias, those of the hidden state and, for a GRU, the
   bias beside these. They are added in whole vectors, so there is room for one more. */
static inline float *sums_at(const Job *job, int64_t gate, int64_t unit) {
    return job->sums + (gate * job->units + unit) * (job->inputs + job->units + 2 + job->lanes);
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

/* A cell's weights [gates · units, size], a panel for all gates of each vector of units. Every job packs some of them. */
static void pack_gates(const Job *job, const float *weights, int64_t size, float *to) {
    const int64_t gates = job->gru ? 3 : 4, width = gates * job->lanes;
    for (int64_t unit = 0, panel = 0; unit < job->padded; unit += job->lanes, panel++, to += size * width)
        for (int64_t gate = 0; gate < gates && panel % job->team_size == job->number; gate++)
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

/* The weights [gates · units, units] of the hidden state, or of an upper layer's inputs, for the backward pass: from the
   gradients of the gates to that of the hidden state, or the inputs. Of the gates of a GRU that these reach, the candidate
   is number `candidate`. Every job packs some of them. */
static void pack_back(const Job *job, const float *weights, int64_t candidate, float *to) {
    const int64_t gates = job->gru ? 3 : 4, units = job->units, padded = job->padded;
    for (int64_t begin = 0, panel = 0, width; begin < padded; begin += width, panel++) {
        width = panel_vectors((padded - begin) / job->lanes) * job->lanes;
        if (panel % job->team_size != job->number) {
            to += gates * padded * width;
            continue;
        }
        for (int64_t k = 0; k < gates * padded; k++, to += width) {
            int64_t gate = job->gru ? (k / padded + 2 - candidate) % 3 : k / padded, unit = k % padded;
            int64_t real = unit < units ? units - begin : 0;
            real = real < 0 ? 0 : real > width ? width : real;
            memcpy(to, weights + (gate * units + unit) * units * (real > 0) + begin * (real > 0), real * sizeof(float));
            memset(to + real, 0, (width - real) * sizeof(float));
        }
    }
}

int64_t job_size(void) { return sizeof(Job); }

/* The number of floats of the packed weights. */
int64_t packed_size(const Job *job, int64_t save) { return save ? packed_offsets(job).end : packed_offsets(job).back; }

static void pack(Job *job) {
    const Offsets at = packed_offsets(job);
    const int64_t gates = job->gru ? 3 : 4, units = job->units, width = gates * job->lanes;
    float *packed = job->packed;
    if (job->upper != NULL) {
        job->upper->team_size = job->team_size;
        job->upper->number = job->number;
        pack(job->upper);
    }
    pack_gates(job, job->weight_ih, job->inputs, packed + at.input);
    pack_gates(job, job->weight_hh, units, packed + at.hidden);
    if (job->chunks != NULL) pack_back(job, job->weight_hh, 0, packed + at.back);
    if (job->chunks != NULL && job->lower != NULL) pack_back(job, job->weight_ih, 2, packed + at.back_input);
    if (job->number) return;
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
}

/* Copy the part of [first, first + size) that is in [begin, end). */
static inline void copy_part(float *to, int64_t begin, int64_t end, const float *from, int64_t first, int64_t size) {
    const int64_t low = begin > first ? begin : first, high = end < first + size ? end : first + size;
    if (low < high) memcpy(to + low - begin, from + low - first, (high - low) * sizeof(float));
}

/* What the gates of some entries were computed from: the inputs, a 1, the hidden state before and another 1. Of these the
   columns from `begin` to `end`, or as many as `width`, and 0 in the rest. */
static void columns_before(const Job *job, int64_t entry, int64_t count, int64_t begin, int64_t end, int64_t width, float *to) {
    const int64_t inputs = job->inputs, units = job->units;
    const float one = 1.0f;
    if (end > begin + width) end = begin + width;
    else memset(to, 0, count * width * sizeof(float));
    for (const int64_t last = entry + count; entry < last; entry++, to += width) {
        float *kept = entry_at(job, entry);
        const float *x = job->lower != NULL ? kept_inputs(job, kept) : job->x + job->place[entry] * inputs;
        copy_part(to, begin, end, x, 0, inputs);
        copy_part(to, begin, end, &one, inputs, 1);
        copy_part(to, begin, end, kept + 4 * job->padded, inputs + 1, units);
        copy_part(to, begin, end, &one, inputs + 1 + units, 1);
    }
}

/* The sums, as PyTorch has the weights, for some units. */
static void set_gradients(const Job *job, int64_t first, int64_t last) {
    const int64_t inputs = job->inputs, units = job->units, gru = job->gru;
    for (int64_t gate = 0; gate < 4; gate++)
        for (int64_t unit = first; unit < last; unit++) {
            const float *sums = sums_at(job, gate, unit);
            /* A GRU's gates are kept as: the hidden state's part of the candidate, reset gate, update gate, candidate. */
            const int64_t input_gate = gate - gru, hidden_gate = gru ? (gate + 2) % 3 : gate;
            if (input_gate >= 0) {
                memcpy(job->of_weight_ih + (input_gate * units + unit) * inputs, sums, inputs * sizeof(float));
                job->of_bias_ih[input_gate * units + unit] = sums[inputs];
            }
            if (gate < 4 - gru) {
                memcpy(job->of_weight_hh + (hidden_gate * units + unit) * units, sums + inputs + 1, units * sizeof(float));
                job->of_bias_hh[hidden_gate * units + unit] = sums[inputs + (gru ? 1 + units : 0)];
            }
        }
}

/* The threads that share the panels of one job: each takes another panel as long as there is one. A thread that is not
   running takes none, so the others need not wait for it. */
typedef struct Crew {
    int64_t ticket __attribute__((aligned(64))); /* how often `share` was called << 32, and how many panels are left */
    int64_t done __attribute__((aligned(64)));
    void (*work)(void *data, int64_t panel) __attribute__((aligned(64)));
    void *data;
    int late; /* whether a thread that had taken a panel kept the others waiting for long */
} Crew;

enum { MAX_SPINS = 10000 };            /* some tenths of a millisecond */
static const int64_t STOP = INT64_MIN; /* a ticket */

static inline void spin(void) {
#ifdef __x86_64__
    _mm_pause();
#endif
}

/* Take a panel, if there is one left: its number, or -1. */
static inline int64_t take_panel(Crew *crew) {
    int64_t ticket = __atomic_load_n(&crew->ticket, __ATOMIC_ACQUIRE);
    while (ticket & 0xffffffff)
        if (__atomic_compare_exchange_n(&crew->ticket, &ticket, ticket - 1, 1, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE))
            return (ticket & 0xffffffff) - 1;
    return -1;
}

static void help(Crew *crew) {
    while (__atomic_load_n(&crew->ticket, __ATOMIC_RELAXED) != STOP) {
        int64_t panel = take_panel(crew);
        if (panel < 0) {
            spin();
            continue;
        }
        crew->work(crew->data, panel);
        __atomic_fetch_add(&crew->done, 1, __ATOMIC_RELEASE);
    }
}

/* Work on all panels, with the crew if there is one. */
static void share(Crew *crew, void (*work)(void *data, int64_t panel), void *data, int64_t panels) {
    if (crew == NULL) {
        for (int64_t panel = 0; panel < panels; panel++) work(data, panel);
        return;
    }
    crew->work = work;
    crew->data = data;
    crew->done = 0;
    const int64_t calls = __atomic_load_n(&crew->ticket, __ATOMIC_RELAXED) >> 32;
    __atomic_store_n(&crew->ticket, ((calls + 1) << 32) + panels, __ATOMIC_RELEASE);
    int64_t own = 0;
    for (int64_t panel; (panel = take_panel(crew)) >= 0; own++) work(data, panel);
    for (int64_t spins = 0; own + __atomic_load_n(&crew->done, __ATOMIC_ACQUIRE) < panels; spins++) {
        if (spins < MAX_SPINS) spin();
        else {
            crew->late = 1;
            sched_yield();
        }
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

#ifdef __x86_64__
#define CALL(name) (job->lanes == 16 ? name##_avx512 : job->lanes == 8 ? name##_avx2 : name##_any)(job)
#else
#define CALL(name) name##_any(job)
#endif
static void read_rows(Job *job) { CALL(forward); }
static void go_back_rows(Job *job) { CALL(backward); }
static void add_gradients(Job *job) { CALL(gradients); }

typedef struct {
    void (*work)(Job *);
    Job *const *jobs;
    int64_t count, next;
    int64_t spent; /* nanoseconds, by all threads together while they had a core */
    Crew *crew;    /* that shares the panels of the first job, or NULL */
} Team;

static int64_t time_of_thread(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* Take jobs of a team until there are none left. Denormal numbers are flushed to zero. */
static void take_jobs(void *data) {
    Team *team = data;
    int64_t start = time_of_thread();
#ifdef __x86_64__
    unsigned int before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
#endif
    for (int64_t next; (next = __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED)) < team->count;) {
        team->work(team->jobs[next]);
        if (team->crew != NULL && next == 0) __atomic_store_n(&team->crew->ticket, STOP, __ATOMIC_RELEASE);
    }
    if (team->crew != NULL) help(team->crew);
#ifdef __x86_64__
    _mm_setcsr(before);
#endif
    __atomic_fetch_add(&team->spent, time_of_thread() - start, __ATOMIC_RELAXED);
}

/* `parallel` is GOMP_parallel of the OpenMP library that PyTorch uses, so that PyTorch's own threads run the jobs. They
   wait actively for some milliseconds after PyTorch's operations; other threads would have to share the cores with them. */
typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);

static int64_t run_jobs(void (*work)(Job *), Job *const *jobs, int64_t count, Parallel parallel) {
    Crew crew = {0};
    Team team = {work, jobs, count, 0, 0, NULL};
    if (jobs[0]->together && (work == read_rows || work == go_back_rows) && parallel != NULL) team.crew = &crew;
    jobs[0]->crew = team.crew;
    for (int64_t number = 0; number < count; number++) {
        jobs[number]->team = jobs;
        jobs[number]->team_size = count;
        jobs[number]->number = number;
    }
    if (count > 1 && parallel != NULL) parallel(take_jobs, &team, (unsigned)count, 0);
    else take_jobs(&team);
    return crew.late ? 1 : team.spent;
}

/* The functions that Python calls, in one thread if `parallel` is NULL, return the nanoseconds of work: 1 if a thread was
   late. */

/* Read the rows of all jobs until they have answered, or a job is `full` and has to `go_on` with more memory. */
int64_t go_on(Job *const *jobs, int64_t count, Parallel parallel) { return run_jobs(read_rows, jobs, count, parallel); }

int64_t begin(Job *const *jobs, int64_t count, Parallel parallel) {
    int64_t spent = run_jobs(pack, jobs, count, parallel);
    return spent + go_on(jobs, count, parallel);
}

/* From the answers of all jobs to their first steps, and the gradients of the weights. */
int64_t go_back(Job *const *jobs, int64_t count, Parallel parallel) {
    int64_t spent = run_jobs(go_back_rows, jobs, count, parallel);
    return spent + run_jobs(add_gradients, jobs, count, parallel);
}
