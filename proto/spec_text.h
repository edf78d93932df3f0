/* SPDX-License-Identifier: Apache-2.0
 *
 * Codec specs as people write them, on command lines and in policy files:
 *
 *   raw
 *   chan:bits=4,axis=channel,group=32,center,normalize,hybrid
 *   fp8:format=e4m3,axis=token
 *
 * a codec's name, then what differs from its defaults. One grammar for every
 * program. Must not know policies or sessions.
 */
#ifndef QR_SPEC_TEXT_H
#define QR_SPEC_TEXT_H

#include "model.h"

#define QR_SPEC_TEXT_MAX 128 /* bytes that qr_spec_format may write, NUL included */

/** Defaults of a codec for keys or for values: 4 bits, group 32, chan per channel for keys and
 * per token for values, one scale a token, no options. codec: a known id. */
void qr_spec_default(uint16_t codec, bool key, struct qr_codec_spec *out);

/**
 * Read a spec; `key` chooses between the defaults of keys and of values. Errors: EINVAL or
 * EUNSUPPORTED with the word that was not understood and the words that would be, or what
 * qr_spec_check says.
 */
quire_status qr_spec_parse(const char *text, bool key, struct qr_codec_spec *out,
                           struct qr_error *e);

/**
 * Read overrides of a policy and add them: LAYERS/TENSORS=CODEC, separated by semicolons, such
 * as "0-1/kv=chan:bits=8;29/k=raw". Errors: EINVAL or EUNSUPPORTED with the part that was not
 * understood; policy untouched.
 */
quire_status qr_overrides_parse(const char *text, struct qr_policy *policy, struct qr_error *e);

/** Write one override as it is read; out of QR_OVERRIDE_TEXT_MAX bytes. */
#define QR_OVERRIDE_TEXT_MAX (QR_SPEC_TEXT_MAX + 32)
void qr_override_format(const struct qr_override *override, char out[QR_OVERRIDE_TEXT_MAX]);

/** Write a valid spec in full, so that qr_spec_parse gives it back; for anything else, its
 * numbers. */
void qr_spec_format(const struct qr_codec_spec *spec, char out[QR_SPEC_TEXT_MAX]);

#endif
