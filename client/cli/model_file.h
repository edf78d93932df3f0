/* SPDX-License-Identifier: Apache-2.0
 *
 * A model as a JSON file (client/cli/README.md shows one) or as options. Every mistake is
 * named by its key; unknown keys are errors. Must not know files of keys and values.
 */
#ifndef QR_MODEL_FILE_H
#define QR_MODEL_FILE_H

#include "client/quire.h"
#include "proto/model.h"

/** A quire_model with the storage that it points to. Big: allocate it, or make it static. */
struct qr_model_file {
    struct quire_model model; /* points into the rest */
    char name[QR_NAME_MAX + 1], revision[QR_NAME_MAX + 1], adapter[QR_NAME_MAX + 1];
    struct quire_layers layers[QR_LAYERS_MAX];
    struct quire_rope ropes[QR_ROPES_MAX];
    uint8_t calibration[QR_CALIBRATION_BYTES_MAX + 1];
    float numbers[QR_ROPES_MAX][3][QR_DIM_MAX / 2]; /* inv_freq, short_factor, long_factor */
};

/** Read and check a file. Errors: EIO, EINVAL with the key and what it must be. */
quire_status qr_model_file_read(const char *path, struct qr_model_file *out,
                                struct qr_error *e);
/** The same from text. */
quire_status qr_model_file_parse(const char *text, struct qr_model_file *out,
                                 struct qr_error *e);
/** Read a calibration file into out->model. Errors: EIO, ETOOBIG. */
quire_status qr_model_file_calibrate(const char *path, struct qr_model_file *out,
                                     struct qr_error *e);
/** Set the pointers of out->model: needed after filling or copying by hand. */
void qr_model_file_link(struct qr_model_file *out, uint32_t layer_runs, uint32_t ropes);

/** The RoPE table of public parameters, as the store computes it. */
quire_status qr_model_file_rope(const struct quire_rope *rope, struct qr_rope *out,
                                struct qr_error *e);

#endif
