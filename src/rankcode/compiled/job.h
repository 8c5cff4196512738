/* What Python passes to the compiled steps: `Job` in library.py has the same fields in the same order. */

#include <stdint.h>

#define MAX_SLOTS 64

typedef struct Job {
    /* Sizes; `padded…` are rounded up to whole vectors. `inner`: units of the readout's hidden layer, or 0. */
    int64_t lanes, gru, inputs, units, padded, classes, padded_classes, inner, padded_inner, activation, one_output;
    int64_t rows, steps;
    /* The weights as PyTorch has them, and memory for them as the steps need them, filled by `pack`. */
    const float *weight_ih, *weight_hh, *bias_ih, *bias_hh, *inner_weight, *inner_bias, *last_weight, *last_bias;
    float *packed;
    /* The batch [rows, steps, inputs], the last step of each row, and the thresholds [steps, padded_classes] or NULL. */
    const float *x;
    const int64_t *ends;
    const float *table;
    /* The state before the first step [rows, units], or NULL for zeros. */
    const float *first_hidden, *first_cell;
    /* Results for each row: the steps read, the most likely class, whether it fired, the logits, the probabilities, and the
       cell after the last step, or NULL. */
    int64_t *answered, *label;
    unsigned char *fired;
    float *logits, *probabilities, *last_cell;
    /* The features of each row after its last step or, if `every_step`, after each. Their gradients have these strides, too. */
    float *features;
    int64_t every_step, row_stride, step_stride;
    /* The rows of a thread: next, next + stride, …, at most `slots` of them at once, in its memory `work`. The inputs of
       `ahead` steps are multiplied at once. */
    int64_t next, stride, slots, ahead;
    float *work;
    int64_t live, swapped;
    int64_t row[MAX_SLOTS], step[MAX_SLOTS], entry[MAX_SLOTS];
    /* The projections of a slot: the steps left, the next of them, and where they are. */
    int64_t projected[MAX_SLOTS], position[MAX_SLOTS], buffer[MAX_SLOTS];
    /* What the backward pass needs, or NULL: an entry for each step of a row that was read, `width` numbers in chunks of
       1 << shift entries, those of a layer from `offset` on. See `entry_at`. */
    float **chunks;
    int64_t shift, width, offset, entries, capacity, full;
    int64_t *place, *previous; /* of each entry: row · steps + step; the entry of the step before, or -1 */
    int64_t *last_entry;       /* of each row */
    /* Gradients: those of the features and of the cell after the last step, or NULL, are given; those of the state before
       the first step are wanted, or NULL. */
    const float *gradient, *of_last_cell;
    float *of_first_hidden, *of_first_cell;
    /* The gradients of the weights, as PyTorch has them, and memory for their sums: see `sums_at`. */
    float *of_weight_ih, *of_weight_hh, *of_bias_ih, *of_bias_hh, *sums;
    /* The jobs that are worked on at the same time, and which of them this is. If the threads work `together`, the first job
       has all rows, and their `crew`, set by C, shares its panels. */
    struct Job *const *team;
    int64_t team_size, number, together;
    struct Crew *crew;
    /* The layers above and below, of as many units, or NULL. The job of the lowest layer has the rows and what belongs to
       them. */
    struct Job *upper, *lower;
} Job;
