/* SPDX-License-Identifier: Apache-2.0
 *
 * A peer that keeps one session the way a server would: what was appended, page
 * or rows, is what fetch sends back. Enough of a store to test the library's
 * two directions against each other. Must not know the library's inside.
 */
#ifndef FAKE_STORE_H
#define FAKE_STORE_H

#include "fake_transport.h"

#include "client/quire.h"
#include "storage/codec/codec.h"

#define FAKE_LAYERS 3
#define FAKE_PARTS 1024

struct fake_part {
    uint32_t layer, tokens;
    uint64_t position;
    bool page;
    uint8_t *bytes;
    size_t n;
};

static struct {
    struct qr_model model;
    struct qr_policy policy;
    struct fake_part parts[FAKE_PARTS];
    size_t count;
    unsigned messages;       /* append messages taken */
    unsigned fail_first;     /* calls to fail with UNAVAILABLE before answering */
    int mute;                /* 1: do not answer at all */
    uint64_t hole_position;  /* UINT64_MAX: none. A part that starts here is missing */
    uint64_t break_position; /* the same: a bit of its payload is flipped */
    struct qr_error refuse;  /* status set: every append is answered with it */
    struct qr_call *held;    /* a call not answered while muted */
    uint32_t tokens_per_page_part;
} fake;

static void fake_add(const struct fake_part *part)
{
    assert(fake.count < FAKE_PARTS);
    fake.parts[fake.count++] = *part;
}

static void fake_take_rows(struct qr_wire_append_view *view)
{
    const struct qr_wire_append *f = &view->fields;

    for (uint32_t i = 0; i < f->layers; i++) {
        const struct qr_layer *l = &fake.model.layers[f->first_layer + i];
        struct fake_part part = {
            .layer = f->first_layer + i, .tokens = f->tokens, .position = f->position};
        part.n = (size_t)f->tokens * l->kv_heads * (l->key_dim + l->value_dim) * 2u;
        part.bytes = malloc(part.n);
        assert(qr_wire_cursor_read(&view->rows, part.bytes, part.n));
        fake_add(&part);
    }
    assert(view->rows.bytes == 0);
}

static void fake_take_pages(struct qr_wire_append_view *view)
{
    struct qr_wire_cursor at = view->all, page;
    uint64_t position = view->fields.position;

    assert(view->fields.layers == 1);
    while (qr_wire_append_next_page(&at, &page)) {
        struct fake_part part = {.layer = view->fields.first_layer,
                                 .tokens = fake.policy.page_tokens,
                                 .position = position,
                                 .page = true,
                                 .n = page.bytes};
        part.bytes = malloc(part.n);
        qr_wire_cursor_read(&page, part.bytes, part.n);
        fake_add(&part);
        position += part.tokens;
    }
}

static void fake_append(struct qr_call *call, enum qr_method method, const uint8_t *bytes,
                        size_t n)
{
    const struct qr_wire_fragment fragment = {.data = bytes, .bytes = n};
    struct qr_wire_append_view view;
    Quire__V1__AppendReply reply = QUIRE__V1__APPEND_REPLY__INIT;

    if (!bytes) {
        fake_end(call, 0, NULL);
        return;
    }
    if (fake.refuse.status) {
        fake_end(call, qr_status_grpc(fake.refuse.status), &fake.refuse);
        return;
    }
    assert(qr_wire_append_parse(&fragment, 1, &view, NULL) == 0);
    if (view.page_count)
        fake_take_pages(&view);
    else
        fake_take_rows(&view);
    fake.messages++;
    reply.length = view.fields.position + view.fields.tokens;
    fake_reply_message(call, &reply.base);
    if (method == QR_METHOD_APPEND)
        fake_end(call, 0, NULL);
}

static void fake_send_part(struct qr_call *call, const struct fake_part *stored, uint64_t first,
                           uint64_t end)
{
    uint8_t *chunk = malloc(stored->n + QR_WIRE_PART_HEAD_MAX);
    const struct qr_layer *l = &fake.model.layers[stored->layer];
    struct qr_wire_part part = {.layer = stored->layer,
                                .heads = l->kv_heads,
                                .position = first,
                                .tokens = (uint32_t)(end - first),
                                .payload = stored->page ? QR_WIRE_PAGE : QR_WIRE_ROWS,
                                .payload_bytes = stored->n};
    const size_t skip = first - stored->position, key = l->kv_heads * l->key_dim * 2u,
                 value = l->kv_heads * l->value_dim * 2u;

    if (stored->position == fake.hole_position) {
        part.status = 1;
        part.payload = QR_WIRE_NO_PAYLOAD;
        part.payload_bytes = 0;
    } else if (!stored->page) {
        part.payload_bytes = part.tokens * (key + value);
    }
    size_t at = qr_wire_part_head(&part, chunk);
    if (part.payload == QR_WIRE_PAGE) {
        memcpy(chunk + at, stored->bytes, stored->n);
        at += stored->n;
    } else if (part.payload == QR_WIRE_ROWS) {
        memcpy(chunk + at, stored->bytes + skip * key, part.tokens * key);
        at += part.tokens * key;
        memcpy(chunk + at, stored->bytes + stored->tokens * key + skip * value,
               part.tokens * value);
        at += part.tokens * value;
    }
    if (stored->position == fake.break_position)
        chunk[at - 100] ^= 4;
    fake_reply(call, chunk, at);
    free(chunk);
}

static void fake_fetch(struct qr_call *call, const uint8_t *bytes, size_t n)
{
    Quire__V1__FetchRequest *r = quire__v1__fetch_request__unpack(NULL, n, bytes);
    const uint64_t end = r->position + r->tokens;

    for (uint32_t layer = r->first_layer; layer < r->first_layer + r->layers; layer++)
        for (size_t i = 0; i < fake.count; i++) {
            const struct fake_part *p = &fake.parts[i];
            const uint64_t a = p->position > r->position ? p->position : r->position;
            const uint64_t b = p->position + p->tokens < end ? p->position + p->tokens : end;
            if (p->layer == layer && a < b)
                fake_send_part(call, p, a, b);
        }
    quire__v1__fetch_request__free_unpacked(r, NULL);
    fake_end(call, 0, NULL);
}

static void fake_hello(struct qr_call *call)
{
    Quire__V1__HelloReply reply = QUIRE__V1__HELLO_REPLY__INIT;

    reply.page_version = QR_PAGE_VERSION;
    reply.max_message_bytes = 4u << 20;
    fake_reply_message(call, &reply.base);
    fake_end(call, 0, NULL);
}

static void fake_open(struct qr_call *call)
{
    static struct qr_wire_model wire;
    struct qr_wire_policy policy;
    Quire__V1__SessionInfo info = QUIRE__V1__SESSION_INFO__INIT;
    Quire__V1__OpenSessionReply reply = QUIRE__V1__OPEN_SESSION_REPLY__INIT;

    qr_wire_model_to(&fake.model, &wire);
    qr_wire_policy_to(&fake.policy, &policy);
    info.session = 7;
    info.epoch = 3;
    info.head_shards = 1;
    info.policy = &policy.message;
    reply.info = &info;
    reply.model = &wire.message;
    fake_reply_message(call, &reply.base);
    fake_end(call, 0, NULL);
}

static void fake_store_request(struct qr_call *call, enum qr_method method,
                               const uint8_t *bytes, size_t n)
{
    if (fake.fail_first && method != QR_METHOD_HELLO && method != QR_METHOD_OPEN_SESSION) {
        fake.fail_first--;
        fake_end(call, 14, NULL);
    } else if (method == QR_METHOD_HELLO) {
        fake_hello(call);
    } else if (method == QR_METHOD_OPEN_SESSION) {
        fake_open(call);
    } else if (method == QR_METHOD_CLOSE_SESSION) {
        fake_reply(call, (const uint8_t *)"", 0);
        fake_end(call, 0, NULL);
    } else if (fake.mute) {
        return;
    } else if (method == QR_METHOD_FETCH) {
        fake_fetch(call, bytes, n);
    } else {
        fake_append(call, method, bytes, n);
    }
}

/* ---- a session on it -------------------------------------------------------------------- */

static quire_client *client;
static quire_session *session;

static int fake_setup(void **state)
{
    struct quire_open_options options;

    (void)state;
    memset(&fake, 0, sizeof(fake));
    fake.hole_position = fake.break_position = UINT64_MAX;
    snprintf(fake.model.name, sizeof(fake.model.name), "fake");
    fake.model.layer_count = FAKE_LAYERS;
    fake.model.rope_count = 1;
    fake.model.ropes[0] =
        (struct qr_rope){.layout = QR_ROPE_HALF, .rotary_dim = 32, .attention_factor = 1};
    for (int i = 0; i < 16; i++)
        fake.model.ropes[0].inv_freq[i] = powf(10000.0f, -(float)i / 16.0f);
    for (int i = 0; i < FAKE_LAYERS; i++)
        fake.model.layers[i] = (struct qr_layer){.query_heads = 4,
                                                 .kv_heads = 2,
                                                 .key_dim = 32,
                                                 .value_dim = 48,
                                                 .rope_stored = QR_ROPE_PRE};
    qr_policy_default(&fake.policy);
    fake.policy.page_tokens = 32;
    fake.policy.window = 32;
    struct qr_error e;
    if (qr_model_seal(&fake.model, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return -1;
    }
    fake_on_request = fake_store_request;
    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_WRITE;
    if (quire_client_open("fake", NULL, &client) ||
        quire_session_open(client, "s", &options, &session)) {
        fprintf(stderr, "%s\n", quire_last_error()->text);
        return -1;
    }
    return 0;
}

static int fake_teardown(void **state)
{
    (void)state;
    quire_session_close(&session);
    quire_client_close(&client);
    for (size_t i = 0; i < fake.count; i++)
        free(fake.parts[i].bytes);
    return 0;
}

/* A value per element that a test can predict: smooth, so that 8 bits hold it well. */
static inline float fake_value(uint32_t layer, int which, uint64_t token, uint32_t head,
                               uint32_t channel)
{
    return sinf((float)(token * 13 + head * 7 + channel * 3 + layer * 5) * 0.01f) +
           (which ? 0.5f : -0.25f);
}

/* K and V of every layer, FP32 [tokens][heads][dim], as arrays of pointers. */
struct fake_kv {
    float *key[FAKE_LAYERS], *value[FAKE_LAYERS];
};

static struct fake_kv fake_kv_make(uint64_t position, uint32_t tokens)
{
    struct fake_kv kv;

    for (uint32_t l = 0; l < FAKE_LAYERS; l++)
        for (int which = 0; which < 2; which++) {
            const uint32_t dim = which ? 48 : 32;
            float *at = malloc((size_t)tokens * 2 * dim * sizeof(float));
            *(which ? &kv.value[l] : &kv.key[l]) = at;
            for (uint32_t t = 0; t < tokens; t++)
                for (uint32_t h = 0; h < 2; h++)
                    for (uint32_t c = 0; c < dim; c++)
                        *at++ = fake_value(l, which, position + t, h, c);
        }
    return kv;
}

static void fake_kv_free(struct fake_kv *kv)
{
    for (uint32_t l = 0; l < FAKE_LAYERS; l++) {
        free(kv->key[l]);
        free(kv->value[l]);
    }
}

static inline struct quire_append fake_append_args(struct fake_kv *kv, uint64_t position,
                                                   uint32_t tokens)
{
    return (struct quire_append){.position = position,
                                 .tokens = tokens,
                                 .layers = FAKE_LAYERS,
                                 .dtype = QUIRE_F32,
                                 .key = (const void *const *)(const void *)kv->key,
                                 .value = (const void *const *)(const void *)kv->value};
}

static inline struct quire_fetch fake_fetch_args(struct fake_kv *kv, uint64_t position,
                                                 uint64_t tokens)
{
    return (struct quire_fetch){.position = position,
                                .tokens = tokens,
                                .layers = FAKE_LAYERS,
                                .dtype = QUIRE_F32,
                                .key = (void *const *)(void *)kv->key,
                                .value = (void *const *)(void *)kv->value};
}

#endif
