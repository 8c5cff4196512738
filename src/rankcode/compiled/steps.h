/* The steps, for vectors of LANES numbers and tiles of TILE rows: recurrence.c includes this once for each kind of
processor.

A row has a slot while it is read. All slots advance together by one step; the slot of a row that has answered goes to the
next row. So tiles stay full, and time follows the sum of steps read.

Weights are packed in panels, [panel][input][vector of outputs]. A panel of a cell's weights has all gates of LANES units,
so that the gates of a tile of rows stay in registers until the state is updated. */

typedef float NAME(V) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t NAME(I) __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
#define V NAME(V)
#define I NAME(I)
#define INLINE TARGET static inline __attribute__((always_inline))
#define FUNCTION TARGET static __attribute__((noinline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

INLINE V NAME(load)(const float *from) { return *(const V *)from; }
INLINE void NAME(store)(float *to, V value) { *(V *)to = value; }
INLINE V NAME(all)(float value) { return value - (V){0}; }
INLINE V NAME(select)(I which, V a, V b) { return (V)((which & (I)a) | (~which & (I)b)); }
#define load NAME(load)
#define store NAME(store)
#define all NAME(all)
#define select NAME(select)

/* NaN stays NaN, as the second operand. */
#if LANES == 16
INLINE V NAME(at_most)(V x, float limit) { return (V)_mm512_min_ps((__m512)all(limit), (__m512)x); }
INLINE V NAME(at_least)(V x, float limit) { return (V)_mm512_max_ps((__m512)all(limit), (__m512)x); }
#elif LANES == 8
INLINE V NAME(at_most)(V x, float limit) { return (V)_mm256_min_ps((__m256)all(limit), (__m256)x); }
INLINE V NAME(at_least)(V x, float limit) { return (V)_mm256_max_ps((__m256)all(limit), (__m256)x); }
#else
INLINE V NAME(at_most)(V x, float limit) { return select(x > limit, all(limit), x); }
INLINE V NAME(at_least)(V x, float limit) { return select(x < limit, all(limit), x); }
#endif
#define at_most NAME(at_most)
#define at_least NAME(at_least)

/* e^x = scale · (1 + the value returned), where scale is a power of 2; |x| < 88. */
INLINE V NAME(power)(V x, V *scale) {
    const float magic = 12582912.0f; /* 1.5 · 2^23: adding it leaves the nearest whole number in the lowest bits */
    V shifted = x * 1.44269504f + magic, n = shifted - magic;
    V r = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* x - n ln 2, with ln 2 in two parts */
    V sum = all(1.0f / 5040);
    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    *scale = (V)(((I)shifted << 23) + 0x3f800000);
    return sum * r;
}

INLINE V NAME(exponential)(V x) {
    V scale, rest = NAME(power)(at_least(at_most(x, 87.0f), -87.0f), &scale);
    return scale * rest + scale;
}

INLINE V NAME(sigmoid)(V x) { return 1.0f / (1.0f + NAME(exponential)(-x)); }

INLINE V NAME(tanh)(V x) {
    I sign = (I)x & INT32_MIN;
    V scale, rest = NAME(power)(at_most((V)((I)x ^ sign) * 2.0f, 40.0f), &scale);
    rest = scale * rest + (scale - 1.0f); /* e^2|x| - 1, exact for small x too */
    return (V)((I)(rest / (rest + 2.0f)) | sign);
}
#define sigmoid NAME(sigmoid)
#define tangent NAME(tanh)

/* sums[row] += a[row] · panel. The numbers of rows and vectors are constants, so that the sums stay in registers. */
INLINE void NAME(multiply)(V sums[TILE][4], const float *const *a, const float *panel, int64_t size, int rows, int vectors) {
    const float *from[TILE];
    UNROLL for (int row = 0; row < rows; row++) from[row] = a[row];
    for (int64_t k = 0; k < size; k++, panel += vectors * LANES) {
        V column[4];
        UNROLL for (int v = 0; v < vectors; v++) column[v] = load(panel + v * LANES);
        UNROLL for (int row = 0; row < rows; row++) {
            V value = all(from[row][k]);
            UNROLL for (int v = 0; v < vectors; v++) sums[row][v] += value * column[v];
        }
    }
}

INLINE void NAME(start)(V sums[TILE][4], const float *const *from, int64_t offset, int rows, int vectors) {
    UNROLL for (int row = 0; row < rows; row++)
        UNROLL for (int v = 0; v < vectors; v++) sums[row][v] = load(from[row] + offset + v * LANES);
}

/* out[row] = begin[row] + a[row] · panel, all from an offset on. */
INLINE void NAME(panel)(float *const *out, const float *const *begin, const float *const *a, const float *panel,
                        int64_t offset, int64_t size, int rows, int vectors) {
    V sums[TILE][4];
    NAME(start)(sums, begin, offset, rows, vectors);
    NAME(multiply)(sums, a, panel, size, rows, vectors);
    UNROLL for (int row = 0; row < rows; row++)
        UNROLL for (int v = 0; v < vectors; v++) store(out[row] + offset + v * LANES, sums[row][v]);
}

/* Call with ROWS, the number of rows of a tile, as a constant. */
#define CASE(count, call)      \
    case count: {              \
        enum { ROWS = count }; \
        call;                  \
    } break;
#if TILE == 6
#define FOR_ROWS(rows, call) \
    switch (rows) { CASE(1, call) CASE(2, call) CASE(3, call) CASE(4, call) CASE(5, call) CASE(6, call) }
#else
#define FOR_ROWS(rows, call) switch (rows) { CASE(1, call) CASE(2, call) CASE(3, call) }
#endif

FUNCTION void NAME(panels)(float *const *out, const float *const *begin, const float *const *a, const float *panel,
                           int64_t offset, int64_t size, int64_t rows, int64_t vectors) {
    for (int64_t row = 0; row < rows; row += TILE, out += TILE, begin += TILE, a += TILE) {
        int64_t count = rows - row < TILE ? rows - row : TILE;
        switch (vectors) {
        case 4: FOR_ROWS(count, NAME(panel)(out, begin, a, panel, offset, size, ROWS, 4)) break;
        case 3: FOR_ROWS(count, NAME(panel)(out, begin, a, panel, offset, size, ROWS, 3)) break;
        case 2: FOR_ROWS(count, NAME(panel)(out, begin, a, panel, offset, size, ROWS, 2)) break;
        case 1: FOR_ROWS(count, NAME(panel)(out, begin, a, panel, offset, size, ROWS, 1)) break;
        }
    }
}

/* out[row] += a[row] · weights */
typedef struct {
    float *const *out;
    const float *const *a;
    const float *weights;
    int64_t size, outputs, rows;
} NAME(Product);

/* The outputs of a panel. */
TARGET static void NAME(product)(void *data, int64_t number) {
    const NAME(Product) *own = data;
    int64_t first = 0, vectors = panel_vectors(own->outputs / LANES);
    for (; number > 0; number--) {
        first += vectors * LANES;
        vectors = panel_vectors((own->outputs - first) / LANES);
    }
    NAME(panels)(own->out, (const float *const *)own->out, own->a, own->weights + first * own->size, first, own->size,
                 own->rows, vectors);
}

FUNCTION void NAME(dense)(Crew *crew, float *const *out, const float *const *a, const float *weights, int64_t size,
                          int64_t outputs, int64_t rows) {
    NAME(Product) all = {out, a, weights, size, outputs, rows};
    const int64_t vectors = outputs / LANES;
    share(crew, NAME(product), &all, vectors / 4 + vectors / 2 % 2 + vectors % 2);
}

/* Where a tile of rows reads and writes. */
typedef struct {
    const float *hidden[MAX_SLOTS], *projected[MAX_SLOTS]; /* before the step; from the inputs */
    float *after[MAX_SLOTS], *cell[MAX_SLOTS];
    float *entry[MAX_SLOTS]; /* see `entry_at`, or not set */
} NAME(Places);

INLINE void NAME(lstm)(const Job *job, const NAME(Places) * at, int64_t first, const float *panel, int64_t unit, int rows) {
    const int64_t padded = job->padded;
    V sums[TILE][4];
    NAME(start)(sums, at->projected + first, 4 * unit, rows, 4);
    NAME(multiply)(sums, at->hidden + first, panel, job->units, rows, 4);
    UNROLL for (int row = 0; row < rows; row++) {
        V enter = sigmoid(sums[row][0]), forget = sigmoid(sums[row][1]);
        V candidate = tangent(sums[row][2]), leave = sigmoid(sums[row][3]);
        float *cell = at->cell[first + row] + unit;
        V before = load(cell), c = forget * before + enter * candidate, h = leave * tangent(c);
        store(cell, c);
        store(at->after[first + row] + unit, h);
        if (job->chunks != NULL) {
            float *entry = at->entry[first + row] + unit;
            store(entry, enter);
            store(entry + padded, forget);
            store(entry + 2 * padded, candidate);
            store(entry + 3 * padded, leave);
            store(entry + 4 * padded, load(at->hidden[first + row] + unit));
            store(entry + 5 * padded, before);
        }
    }
}

INLINE void NAME(gru)(const Job *job, const NAME(Places) * at, int64_t first, const float *panel, int64_t unit,
                      const float *recall_bias, int rows) {
    const int64_t padded = job->padded;
    V sums[TILE][4];
    NAME(start)(sums, at->projected + first, 3 * unit, rows, 2);
    UNROLL for (int row = 0; row < rows; row++) sums[row][2] = load(recall_bias + unit);
    NAME(multiply)(sums, at->hidden + first, panel, job->units, rows, 3);
    UNROLL for (int row = 0; row < rows; row++) {
        V reset = sigmoid(sums[row][0]), update = sigmoid(sums[row][1]), recall = sums[row][2];
        V candidate = tangent(load(at->projected[first + row] + 3 * unit + 2 * LANES) + reset * recall);
        V before = load(at->hidden[first + row] + unit), h = candidate + update * (before - candidate);
        store(at->after[first + row] + unit, h);
        if (job->chunks != NULL) {
            float *entry = at->entry[first + row] + unit;
            store(entry, recall);
            store(entry + padded, reset);
            store(entry + 2 * padded, update);
            store(entry + 3 * padded, candidate);
            store(entry + 4 * padded, before);
        }
    }
}

/* Where all slots read and write in a step. */
typedef struct {
    const Job *job;
    NAME(Places) at;
    float *buffers;
    int64_t waiting[MAX_SLOTS], count; /* the slots that have no projected inputs left */
    const float *below[MAX_SLOTS];     /* in an upper layer: its inputs, and where they are projected */
    float *gates[MAX_SLOTS];
} NAME(Step);

/* Advance all slots by one step: the units of a panel. */
TARGET static void NAME(advance)(void *data, int64_t number) {
    const NAME(Step) *step = data;
    const Job *job = step->job;
    const Offsets offsets = packed_offsets(job);
    const float *panel = job->packed + offsets.hidden + number * job->units * (job->gru ? 3 : 4) * LANES;
    for (int64_t first = 0; first < job->live; first += TILE) {
        int64_t count = job->live - first < TILE ? job->live - first : TILE, unit = number * LANES;
        if (job->gru) FOR_ROWS(count, NAME(gru)(job, &step->at, first, panel, unit, job->packed + offsets.recall, ROWS))
        else FOR_ROWS(count, NAME(lstm)(job, &step->at, first, panel, unit, ROWS))
    }
}

/* Multiply the next inputs of all slots that have none left: the units of a panel. */
TARGET static void NAME(project)(void *data, int64_t number) {
    const NAME(Step) *step = data;
    const Job *job = step->job;
    const int64_t gates = job->gru ? 3 : 4, width = gates * job->padded;
    const Offsets offsets = packed_offsets(job);
    const float *panel = job->packed + offsets.input + number * job->inputs * gates * LANES, *begin[TILE];
    for (int k = 0; k < TILE; k++) begin[k] = job->packed + offsets.bias;
    for (int64_t each = 0; each < step->count; each++) {
        int64_t slot = step->waiting[each];
        const float *x = job->x + (job->row[slot] * job->steps + job->step[slot]) * job->inputs;
        float *out = step->buffers + job->buffer[slot] * job->ahead * width;
        for (int64_t first = 0; first < job->projected[slot]; first += TILE) {
            int64_t rows = job->projected[slot] - first < TILE ? job->projected[slot] - first : TILE;
            float *to[TILE];
            const float *from[TILE];
            for (int64_t k = 0; k < rows; k++) {
                to[k] = out + (first + k) * width;
                from[k] = x + (first + k) * job->inputs;
            }
            NAME(panels)(to, begin, from, panel, number * LANES * gates, job->inputs, rows, gates);
        }
    }
}

/* The same in an upper layer, for all slots. */
TARGET static void NAME(project_upper)(void *data, int64_t number) {
    const NAME(Step) *step = data;
    const Job *job = step->job;
    const int64_t gates = job->gru ? 3 : 4;
    const Offsets offsets = packed_offsets(job);
    const float *begin[MAX_SLOTS];
    for (int64_t slot = 0; slot < job->live; slot++) begin[slot] = job->packed + offsets.bias;
    NAME(panels)(step->gates, begin, step->below, job->packed + offsets.input + number * job->inputs * gates * LANES,
                 number * LANES * gates, job->inputs, job->live, gates);
}

/* Advance all slots of an upper layer by one step, given the features of the layer below. */
FUNCTION float *NAME(advance_upper)(const Job *job, Job *upper, const float *below) {
    const int64_t padded = job->padded, block = job->slots * padded;
    float *hidden = upper->work + job->swapped * block, *after = upper->work + !job->swapped * block;
    float *cell = upper->work + 2 * block, *gates = cell + block;
    NAME(Step) step;
    step.job = upper;
    upper->live = job->live;
    for (int64_t slot = 0; slot < job->live; slot++) {
        step.below[slot] = below + slot * padded;
        step.at.projected[slot] = step.gates[slot] = gates + slot * (job->gru ? 3 : 4) * padded;
        step.at.hidden[slot] = hidden + slot * padded;
        step.at.after[slot] = after + slot * padded;
        step.at.cell[slot] = cell + slot * padded;
        if (upper->chunks == NULL) continue;
        step.at.entry[slot] = entry_at(upper, job->entry[slot]);
        memcpy(kept_inputs(upper, step.at.entry[slot]), step.below[slot], padded * sizeof(float));
    }
    share(job->crew, NAME(project_upper), &step, padded / LANES);
    share(job->crew, NAME(advance), &step, padded / LANES);
    return after;
}

/* Find the slots that have no projected inputs left, and how many of their inputs are multiplied now. */
FUNCTION void NAME(find_waiting)(Job *job, NAME(Step) * step) {
    step->count = 0;
    for (int64_t slot = 0; slot < job->live; slot++)
        if (!job->projected[slot]) {
            int64_t left = job->ends[job->row[slot]] - job->step[slot];
            job->projected[slot] = left < job->ahead ? left : job->ahead;
            job->position[slot] = 0;
            step->waiting[step->count++] = slot;
        }
}

INLINE float NAME(sum)(V values) {
    float sum = 0.0f;
    UNROLL for (int lane = 0; lane < LANES; lane++) sum += values[lane];
    return sum;
}

/* The most likely class, and the sum over classes of e^(logit - its logit). */
INLINE int64_t NAME(likeliest)(const Job *job, const float *logits, float *sum) {
    int64_t label = 0;
    for (int64_t k = 1; k < job->classes; k++) label = logits[k] > logits[label] ? k : label;
    V total = all(0.0f);
    for (int64_t k = 0; k < job->padded_classes; k += LANES) total += NAME(exponential)(load(logits + k) - logits[label]);
    *sum = NAME(sum)(total);
    return *sum == *sum ? label : 0; /* as PyTorch does it, if all probabilities are NaN */
}

/* Whether a class reaches its threshold. */
INLINE int NAME(fires)(const Job *job, const float *logits, const float *thresholds) {
    float sum;
    const float largest = logits[NAME(likeliest)(job, logits, &sum)];
    int found = 0;
    for (int64_t k = 0; k < job->padded_classes; k += LANES) {
        V share = NAME(exponential)(load(logits + k) - largest) / sum;
        I reached = share >= load(thresholds + k);
        UNROLL for (int lane = 0; lane < LANES; lane++) found |= reached[lane];
    }
    return found;
}

/* A row answers: what it answers, and how probable every class is. */
FUNCTION void NAME(answer)(const Job *job, int64_t row, const float *logits) {
    const int64_t classes = job->classes;
    float sum;
    const float largest = logits[job->label[row] = NAME(likeliest)(job, logits, &sum)];
    memcpy(job->logits + row * classes, logits, classes * sizeof(float));
    for (int64_t k = 0; k < classes; k += LANES) {
        V share = NAME(exponential)(load(logits + k) - largest) / sum;
        memcpy(job->probabilities + row * classes + k, &share, (classes - k < LANES ? classes - k : LANES) * sizeof(float));
    }
}

FUNCTION void NAME(logits)(const Job *job, const float *hidden, float *inner, float *logits) {
    const Offsets offsets = packed_offsets(job);
    const float *from[MAX_SLOTS];
    float *to[MAX_SLOTS];
    int64_t size = job->units;
    for (int64_t slot = 0; slot < job->live; slot++) from[slot] = hidden + slot * job->padded;
    if (job->inner) {
        for (int64_t slot = 0; slot < job->live; slot++) {
            to[slot] = inner + slot * job->padded_inner;
            memcpy(to[slot], job->packed + offsets.inner_bias, job->padded_inner * sizeof(float));
        }
        NAME(dense)(NULL, to, from, job->packed + offsets.inner, size, job->padded_inner, job->live);
        for (int64_t slot = 0; slot < job->live; slot++) {
            for (int64_t k = 0; k < job->padded_inner; k += LANES) {
                V value = load(to[slot] + k);
                if (job->activation == RELU) value = select(value < 0.0f, all(0.0f), value);
                else value = job->activation == TANH ? tangent(value) : sigmoid(value);
                store(to[slot] + k, value);
            }
            from[slot] = to[slot];
        }
        size = job->inner;
    }
    for (int64_t slot = 0; slot < job->live; slot++) {
        to[slot] = logits + slot * job->padded_classes;
        memcpy(to[slot], job->packed + offsets.last_bias, job->padded_classes * sizeof(float));
    }
    NAME(dense)(NULL, to, from, job->packed + offsets.last, size, job->padded_classes, job->live);
}

/* Read rows until all have answered, or until there is no memory left for the next step: then the job is `full`. */
TARGET static void NAME(forward)(Job *job) {
    const int64_t padded = job->padded, width = (job->gru ? 3 : 4) * padded, block = job->slots * padded;
    const int64_t size = job->units * sizeof(float);
    float *cell = job->work + 2 * block, *logits = cell + block, *inner = logits + job->slots * job->padded_classes;
    float *buffers = inner + job->slots * job->padded_inner;
    NAME(Step) current = {.job = job, .buffers = buffers};
    NAME(Places) *at = &current.at;
    for (;;) {
        float *hidden = job->work + job->swapped * block, *after = job->work + !job->swapped * block;
        for (; job->live < job->slots && job->next < job->rows; job->next += job->stride) {
            int64_t slot = job->live++;
            job->row[slot] = job->next;
            job->step[slot] = job->projected[slot] = 0;
            job->entry[slot] = -1;
            for (const Job *layer = job; layer != NULL; layer = layer->upper) {
                memset(layer->work + job->swapped * block + slot * padded, 0, padded * sizeof(float));
                memset(layer->work + 2 * block + slot * padded, 0, padded * sizeof(float));
            }
            if (job->first_hidden != NULL) memcpy(hidden + slot * padded, job->first_hidden + job->next * job->units, size);
            if (job->first_cell != NULL) memcpy(cell + slot * padded, job->first_cell + job->next * job->units, size);
        }
        job->full = job->chunks != NULL && job->entries + job->live > job->capacity;
        if (!job->live || job->full) return;
        NAME(find_waiting)(job, &current);
        if (current.count) share(job->crew, NAME(project), &current, padded / LANES);
        for (int64_t slot = 0; slot < job->live; slot++) {
            at->hidden[slot] = hidden + slot * padded;
            at->after[slot] = after + slot * padded;
            at->cell[slot] = cell + slot * padded;
            at->projected[slot] = buffers + (job->buffer[slot] * job->ahead + job->position[slot]) * width;
            if (job->chunks != NULL) {
                int64_t entry = job->entries++;
                at->entry[slot] = entry_at(job, entry);
                job->place[entry] = job->row[slot] * job->steps + job->step[slot];
                job->previous[entry] = job->entry[slot];
                job->entry[slot] = entry;
            }
        }
        share(job->crew, NAME(advance), &current, padded / LANES);
        const float *found = after; /* the features of the topmost layer */
        for (Job *upper = job->upper; upper != NULL; upper = upper->upper) found = NAME(advance_upper)(job, upper, found);
        if (job->table != NULL) NAME(logits)(job, found, inner, logits);
        for (int64_t slot = job->live - 1; slot >= 0; slot--) {
            int64_t row = job->row[slot], step = job->step[slot]++;
            const float *own = logits + slot * job->padded_classes;
            int fired = job->table != NULL && NAME(fires)(job, own, job->table + step * job->padded_classes);
            job->position[slot]++;
            job->projected[slot]--;
            if (job->every_step) memcpy(features_at(job, row, step), found + slot * padded, size);
            if (!fired && job->step[slot] < job->ends[row]) continue;
            if (job->table != NULL) {
                job->answered[row] = job->step[slot];
                job->fired[row] = (unsigned char)fired;
                NAME(answer)(job, row, own);
            }
            if (!job->every_step) memcpy(features_at(job, row, 0), found + slot * padded, size);
            if (job->last_cell != NULL) memcpy(job->last_cell + row * job->units, cell + slot * padded, size);
            if (job->chunks != NULL) job->last_entry[row] = job->entry[slot];
            int64_t last = --job->live; /* the last slot moves here */
            if (slot == last) continue;
            int64_t buffer = job->buffer[slot];
            job->buffer[slot] = job->buffer[last];
            job->buffer[last] = buffer;
            job->row[slot] = job->row[last];
            job->step[slot] = job->step[last];
            job->entry[slot] = job->entry[last];
            job->projected[slot] = job->projected[last];
            job->position[slot] = job->position[last];
            for (const Job *layer = job; layer != NULL; layer = layer->upper) {
                float *own = layer->work + !job->swapped * block, *own_cell = layer->work + 2 * block;
                memcpy(own + slot * padded, own + last * padded, padded * sizeof(float));
                memcpy(own_cell + slot * padded, own_cell + last * padded, padded * sizeof(float));
            }
        }
        job->swapped = !job->swapped;
    }
}

/* The gradients of a step's gates, in place of the gates, and of the cell before it. */
INLINE void NAME(lstm_back)(const float *hidden, float *cell, float *gates, int64_t padded) {
    for (int64_t unit = 0; unit < padded; unit += LANES) {
        V enter = load(gates + unit), forget = load(gates + padded + unit), candidate = load(gates + 2 * padded + unit);
        V leave = load(gates + 3 * padded + unit), c = load(gates + 5 * padded + unit);
        V outer = tangent(forget * c + enter * candidate), of_hidden = load(hidden + unit);
        V of_cell = load(cell + unit) + of_hidden * leave * (1.0f - outer * outer);
        store(cell + unit, of_cell * forget);
        store(gates + unit, of_cell * candidate * enter * (1.0f - enter));
        store(gates + padded + unit, of_cell * c * forget * (1.0f - forget));
        store(gates + 2 * padded + unit, of_cell * enter * (1.0f - candidate * candidate));
        store(gates + 3 * padded + unit, of_hidden * outer * leave * (1.0f - leave));
    }
}

/* The same for a GRU, and the part of the gradient that passes the step through the update gate. */
INLINE void NAME(gru_back)(const float *hidden, float *passed, float *gates, int64_t padded) {
    for (int64_t unit = 0; unit < padded; unit += LANES) {
        V recall = load(gates + unit), reset = load(gates + padded + unit), update = load(gates + 2 * padded + unit);
        V candidate = load(gates + 3 * padded + unit), of_hidden = load(hidden + unit);
        V of_candidate = of_hidden * (1.0f - update) * (1.0f - candidate * candidate);
        store(passed + unit, of_hidden * update);
        store(gates + unit, of_candidate * reset);
        store(gates + padded + unit, of_candidate * recall * reset * (1.0f - reset));
        V before = load(gates + 4 * padded + unit);
        store(gates + 2 * padded + unit, of_hidden * (before - candidate) * update * (1.0f - update));
        store(gates + 3 * padded + unit, of_candidate);
    }
}

/* A row has been taken back to its first step: the last slot moves to its place. */
FUNCTION void NAME(leave)(Job *job, int64_t slot, int64_t next) {
    const int64_t last = --job->live, padded = job->padded, size = padded * sizeof(float);
    job->row[slot] = job->row[last];
    job->entry[slot] = job->entry[last];
    for (const Job *layer = job; layer != NULL; layer = layer->upper) {
        float *to = layer->work + slot * padded, *from = layer->work + last * padded;
        memmove(to + next, from + next, size);
        memmove(to + 2 * job->slots * padded, from + 2 * job->slots * padded, size);
    }
}

/* The gradients of hidden states += those of the gates of these entries · weights. */
INLINE void NAME(dense_back)(const Job *job, const Job *layer, const int64_t *entry, const float *weights, int64_t first,
                             float *hidden) {
    const float *from[MAX_SLOTS];
    float *to[MAX_SLOTS];
    for (int64_t slot = 0; slot < job->live; slot++) {
        from[slot] = entry_at(layer, entry[slot]) + first;
        to[slot] = hidden + slot * job->padded;
    }
    NAME(dense)(job->crew, to, from, weights, (job->gru ? 3 : 4) * job->padded, job->padded, job->live);
}

/* From the last step of every row to the first. */
TARGET static void NAME(backward)(Job *job) {
    const int64_t padded = job->padded, block = job->slots * padded, units = job->units, size = units * sizeof(float);
    const Job *top = job;
    while (top->upper != NULL) top = top->upper;
    /* Units past the last keep a gradient of zero. */
    for (const Job *layer = job; layer != NULL; layer = layer->upper) memset(layer->work, 0, 3 * block * sizeof(float));
    for (int64_t swapped = 0;; swapped = !swapped) {
        /* Where the gradients are in `work`: of the hidden states, of those before, and of the cells. */
        const int64_t now = swapped * block, next = !swapped * block, cell = 2 * block;
        for (; job->live < job->slots && job->next < job->rows; job->next += job->stride) {
            int64_t slot = job->live++, row = job->next;
            job->row[slot] = row;
            job->entry[slot] = job->last_entry[row];
            for (const Job *layer = job; layer != NULL; layer = layer->upper) {
                memset(layer->work + now + slot * padded, 0, size);
                memset(layer->work + cell + slot * padded, 0, size);
            }
            if (!job->every_step) memcpy(top->work + now + slot * padded, job->gradient + row * job->row_stride, size);
            if (job->of_last_cell != NULL) memcpy(job->work + cell + slot * padded, job->of_last_cell + row * units, size);
        }
        if (!job->live) return;
        int64_t entry[MAX_SLOTS];
        for (int64_t slot = 0; slot < job->live; slot++) {
            entry[slot] = job->entry[slot];
            if (!job->every_step) continue;
            int64_t row = job->row[slot], step = job->place[entry[slot]] - row * job->steps;
            const float *gradient = job->gradient + row * job->row_stride + step * job->step_stride;
            float *own = top->work + now + slot * padded;
            for (int64_t unit = 0; unit < units; unit++) own[unit] += gradient[unit];
        }
        for (const Job *layer = top; layer != NULL; layer = layer->lower) {
            for (int64_t slot = 0; slot < job->live; slot++) {
                float *own = layer->work + slot * padded, *kept = entry_at(layer, entry[slot]);
                if (job->gru) NAME(gru_back)(own + now, own + next, kept, padded);
                else NAME(lstm_back)(own + now, own + cell, kept, padded);
            }
            if (layer->lower != NULL) /* a GRU's gradient of the candidate itself is the last */
                NAME(dense_back)(job, layer, entry, layer->packed + packed_offsets(layer).back_input, job->gru ? padded : 0,
                                 layer->lower->work + now);
        }
        for (int64_t slot = job->live - 1; slot >= 0; slot--) {
            job->entry[slot] = job->previous[entry[slot]];
            if (job->entry[slot] >= 0 || job->of_first_hidden != NULL) continue;
            entry[slot] = entry[job->live - 1]; /* nobody needs the gradient of the state before the first step */
            NAME(leave)(job, slot, next);
        }
        for (const Job *layer = job; layer != NULL; layer = layer->upper) {
            if (!job->gru) memset(layer->work + next, 0, job->live * padded * sizeof(float));
            NAME(dense_back)(job, layer, entry, layer->packed + packed_offsets(layer).back, 0, layer->work + next);
        }
        for (int64_t slot = job->live - 1; slot >= 0; slot--) {
            if (job->entry[slot] >= 0) continue;
            memcpy(job->of_first_hidden + job->row[slot] * units, job->work + next + slot * padded, size);
            if (!job->gru) memcpy(job->of_first_cell + job->row[slot] * units, job->work + cell + slot * padded, size);
            NAME(leave)(job, slot, next);
        }
    }
}

/* to[gate][column] = Σ gates[entry][gate] · panel[entry][column], or, if `add`, that is added. */
INLINE void NAME(outer)(float *to, int64_t stride, float *const *gates, int64_t gate, const float *panel, int64_t count,
                        int add, int rows, int vectors) {
    V sums[TILE][4];
    UNROLL for (int row = 0; row < rows; row++)
        UNROLL for (int v = 0; v < vectors; v++) sums[row][v] = all(0.0f);
    for (int64_t k = 0; k < count; k++, panel += vectors * LANES) {
        const float *from = gates[k] + gate;
        V column[4];
        UNROLL for (int v = 0; v < vectors; v++) column[v] = load(panel + v * LANES);
        UNROLL for (int row = 0; row < rows; row++) {
            V value = all(from[row]);
            UNROLL for (int v = 0; v < vectors; v++) sums[row][v] += value * column[v];
        }
    }
    UNROLL for (int row = 0; row < rows; row++)
        UNROLL for (int v = 0; v < vectors; v++) {
            float *at = to + row * stride + v * LANES;
            if (add) sums[row][v] += load(at);
            store(at, sums[row][v]);
        }
}

/* The gradients of the weights of some units of a layer, from the entries of all jobs. */
FUNCTION void NAME(layer_gradients)(const Job *job, int64_t level, int64_t begin, int64_t end) {
    const Job *layer = layer_at(job, level);
    const int64_t units = job->units, inputs = layer->inputs, gru = job->gru;
    const int64_t stride = sums_at(layer, 0, 1) - layer->sums;
    float panel[ENTRIES * 4 * LANES], *gates[ENTRIES];
    for (int64_t part = 0; part <= gru; part++) {
        /* Of a GRU the first gate does not read the inputs, and the last not the hidden state. */
        const int64_t first_gate = gru && !part, last_gate = 4 - part;
        const int64_t first = part ? inputs + 1 : 0, last = gru && !part ? inputs + 1 : inputs + 1 + units + gru;
        int add = 0;
        for (int64_t member = 0; member < job->team_size; member++)
            for (int64_t entry = 0; entry < job->team[member]->entries; entry += ENTRIES, add = 1) {
                const Job *from = layer_at(job->team[member], level);
                const int64_t left = job->team[member]->entries - entry, count = left < ENTRIES ? left : ENTRIES;
                for (int64_t k = 0; k < count; k++) gates[k] = entry_at(from, entry + k);
                for (int64_t column = first, vectors; column < last; column += vectors * LANES) {
                    vectors = panel_vectors((last - column + LANES - 1) / LANES);
                    columns_before(from, entry, count, column, last, vectors * LANES, panel);
                    for (int64_t gate = first_gate; gate < last_gate; gate++)
                        for (int64_t unit = begin, rows; unit < end; unit += rows) {
                            rows = end - unit < TILE ? end - unit : TILE;
                            float *to = sums_at(layer, gate, unit) + column;
                            const int64_t at = gate * job->padded + unit;
                            switch (vectors) {
                            case 4: FOR_ROWS(rows, NAME(outer)(to, stride, gates, at, panel, count, add, ROWS, 4)) break;
                            case 2: FOR_ROWS(rows, NAME(outer)(to, stride, gates, at, panel, count, add, ROWS, 2)) break;
                            case 1: FOR_ROWS(rows, NAME(outer)(to, stride, gates, at, panel, count, add, ROWS, 1)) break;
                            }
                        }
                }
            }
    }
    set_gradients(layer, begin, end);
}

TARGET static void NAME(gradients)(Job *job) {
    const int64_t begin = job->units * job->number / job->team_size, end = job->units * (job->number + 1) / job->team_size;
    for (int64_t level = 0; layer_at(job, level) != NULL; level++) NAME(layer_gradients)(job, level, begin, end);
}

#undef V
#undef I
#undef INLINE
#undef FUNCTION
#undef UNROLL
#undef CASE
#undef FOR_ROWS
#undef load
#undef store
#undef all
#undef select
#undef at_most
#undef at_least
#undef sigmoid
#undef tangent
