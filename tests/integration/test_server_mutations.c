/* SPDX-License-Identifier: Apache-2.0
 *
 * Good requests of every method with bytes changed, cut off, added and doubled, sent to a real
 * server: each is answered, with a reply or with an error that is no failure of the server, and
 * a session that no request names is as it was. QUIRE_TEST_SEED replays. In the sanitizers'
 * builds the server is instrumented, and a report of it fails the test.
 */
#include "client/quire.h"
#include "proto/wire.h"
#include "quired.h"
#include "tests/unit/server/raw_client.h"

#define DIM 16
#define TOKENS 300
#define BYTES_MAX 2048
#define RANDOM_ROUNDS 150

static struct quired server;
static struct raw_client client;
static quire_client *library;
static quire_session *witness, *victim_session;
static uint8_t fingerprint[32];
static float kv[TOKENS * DIM];
static uint64_t random_state = 88172645463325252u;
static uint64_t victim, victim_epoch;
static uint32_t answered, refused;

static uint32_t roll(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 20) % n;
}

/* ---- a server with a witness and a victim ------------------------------------------------ */

static quire_session *open_and_fill(const char *name)
{
    const void *tensors[] = {kv};
    const struct quire_append append = {
        .tokens = TOKENS, .layers = 1, .dtype = QUIRE_F32, .key = tensors, .value = tensors};
    struct quire_open_options options;
    quire_session *session = NULL;

    quire_open_options_init(&options);
    options.flags = QUIRE_OPEN_CREATE | QUIRE_OPEN_WRITE | QUIRE_OPEN_FORCE;
    options.fingerprint = fingerprint;
    if (quire_session_open(library, name, &options, &session) ||
        quire_append(session, &append, NULL))
        fail_msg("%s: %s", name, quire_last_error()->text);
    return session;
}

static int set_up(void **state)
{
    static const struct quire_layers layers = {
        .count = 1, .query_heads = 1, .kv_heads = 1, .key_dim = DIM, .value_dim = DIM};
    static const struct quire_model model = {.name = "m", .layers = &layers, .layer_runs = 1};
    const char *seed = getenv("QUIRE_TEST_SEED");
    (void)state;

    if (seed)
        random_state = strtoull(seed, NULL, 10);
    print_message("QUIRE_TEST_SEED=%llu\n", (unsigned long long)random_state);
    for (size_t i = 0; i < ARRAY_LEN(kv); i++)
        kv[i] = sinf((float)i * 0.1f);
    quired_folder(&server);
    quired_start(&server, (const char *const[]){"--log-level", "error", NULL});
    raw_open(&client, server.target);
    if (quire_client_open(server.target, NULL, &library) ||
        quire_model_register(library, &model, fingerprint))
        fail_msg("%s", quire_last_error()->text);
    witness = open_and_fill("witness");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    quire_session_close(&witness);
    quire_session_close(&victim_session);
    quire_client_close(&library);
    raw_close(&client);
    quired_stop(&server);
    quired_clean(&server);
    return 0;
}

/* Appends to a session that a request may have dropped, cut or leased to somebody. */
static void renew_victim(void)
{
    static const Quire__V1__GetSessionRequest get = {
        PROTOBUF_C_MESSAGE_INIT(&quire__v1__get_session_request__descriptor),
        .name = (char *)(uintptr_t) "victim"};
    uint8_t request[64], reply[1024];
    _Alignas(16) uint8_t memory[2048];
    struct qr_wire_arena arena;
    struct qr_wire_fragment fragment = {.data = reply};
    ProtobufCMessage *message;
    struct raw_call call;
    size_t n;

    quire_session_close(&victim_session);
    (void)quire_session_drop(library, "victim", true);
    victim_session = open_and_fill("victim");
    assert_ok(qr_wire_pack(&get.base, request, sizeof(request), &n, NULL));
    const long got = raw_unary(&client, &call, "/quire.v1.Quire/GetSession", request, n, reply,
                               sizeof(reply));
    assert_true(got > 0);
    raw_end(&call);
    fragment.bytes = (size_t)got;
    qr_wire_arena_init(&arena, memory, sizeof(memory));
    assert_ok(qr_wire_unpack(&quire__v1__session_info__descriptor, &fragment, 1, &arena,
                             &message, NULL));
    victim = ((const Quire__V1__SessionInfo *)message)->session;
    victim_epoch = ((const Quire__V1__SessionInfo *)message)->epoch;
}

/* ---- requests ---------------------------------------------------------------------------- */

static size_t pack(const ProtobufCMessage *message, uint8_t *out)
{
    size_t n;

    assert_ok(qr_wire_pack(message, out, BYTES_MAX, &n, NULL));
    return n;
}

static size_t make_model(uint8_t *out)
{
    Quire__V1__Rope rope = QUIRE__V1__ROPE__INIT, *ropes[] = {&rope};
    Quire__V1__LayerGeometry layer = QUIRE__V1__LAYER_GEOMETRY__INIT, *list[] = {&layer};
    Quire__V1__Model model = QUIRE__V1__MODEL__INIT;
    Quire__V1__RegisterModelRequest m = QUIRE__V1__REGISTER_MODEL_REQUEST__INIT;
    float inv_freq[] = {1, 0.5f, 0.25f, 0.125f};

    rope.layout = QUIRE__V1__ROPE_LAYOUT__HALF;
    rope.rotary_dim = 8;
    rope.attention_factor = 1;
    rope.n_inv_freq = ARRAY_LEN(inv_freq);
    rope.inv_freq = inv_freq;
    layer.count = 2;
    layer.query_heads = layer.kv_heads = 1;
    layer.key_dim = layer.value_dim = DIM;
    layer.rope_stored = QUIRE__V1__ROPE_STORED__ROPE_PRE;
    model.name = (char *)(uintptr_t) "other";
    model.n_layers = model.n_ropes = 1;
    model.layers = list;
    model.ropes = ropes;
    m.model = &model;
    return pack(&m.base, out);
}

static size_t make_open(uint8_t *out)
{
    Quire__V1__OpenSessionRequest m = QUIRE__V1__OPEN_SESSION_REQUEST__INIT;
    struct qr_wire_policy wire;
    struct qr_policy policy;

    qr_policy_default(&policy);
    qr_wire_policy_to(&policy, &wire);
    m.name = (char *)(uintptr_t) "victim";
    m.fingerprint = (ProtobufCBinaryData){sizeof(fingerprint), fingerprint};
    m.policy = &wire.message;
    m.create = true;
    m.lease_ms = 1000;
    return pack(&m.base, out);
}

static size_t make_append(uint8_t *out)
{
    static uint16_t rows[3 * 2 * DIM];
    static uint32_t ids[] = {1, 2, 3};
    Quire__V1__AppendRequest m = QUIRE__V1__APPEND_REQUEST__INIT;

    m.session = victim;
    m.epoch = victim_epoch;
    m.position = TOKENS;
    m.tokens = 3;
    m.layers = 1;
    m.dtype = QUIRE__V1__DTYPE__F16;
    m.n_token_ids = ARRAY_LEN(ids);
    m.token_ids = ids;
    m.rows = (ProtobufCBinaryData){sizeof(rows), (uint8_t *)rows};
    return pack(&m.base, out);
}

static size_t make_fetch(uint8_t *out)
{
    Quire__V1__FetchRequest m = QUIRE__V1__FETCH_REQUEST__INIT;

    m.session = victim;
    m.position = 100;
    m.tokens = 60;
    m.layers = 1;
    m.expand = true;
    m.dtype = QUIRE__V1__DTYPE__F16;
    m.position_shift = -3;
    return pack(&m.base, out);
}

static size_t make_attend(uint8_t *out)
{
    static float query[DIM];
    static uint64_t positions[] = {TOKENS};
    Quire__V1__AttendRequest m = QUIRE__V1__ATTEND_REQUEST__INIT;

    m.session = victim;
    m.layers = 1;
    m.n_positions = 1;
    m.positions = positions;
    m.dtype = QUIRE__V1__DTYPE__F32;
    m.queries = (ProtobufCBinaryData){sizeof(query), (uint8_t *)query};
    m.allow_missing = true;
    return pack(&m.base, out);
}

/* The fields that these messages have in common. */
#define MAKE(name, type, TYPE, ...)                                                            \
    static size_t make_##name(uint8_t *out)                                                    \
    {                                                                                          \
        Quire__V1__##type m = QUIRE__V1__##TYPE##__INIT;                                       \
        __VA_ARGS__;                                                                           \
        return pack(&m.base, out);                                                             \
    }
#define TEXT(t) ((char *)(uintptr_t)(t))

MAKE(hello, HelloRequest, HELLO_REQUEST, (void)0)
MAKE(get_model, GetModelRequest, GET_MODEL_REQUEST,
     m.fingerprint = ((ProtobufCBinaryData){sizeof(fingerprint), fingerprint}))
MAKE(close, CloseSessionRequest, CLOSE_SESSION_REQUEST, m.session = victim, m.epoch = 1)
MAKE(drop, DropSessionRequest, DROP_SESSION_REQUEST, m.name = TEXT("victim"), m.force = true)
MAKE(get, GetSessionRequest, GET_SESSION_REQUEST, m.name = TEXT("victim"))
MAKE(list, ListSessionsRequest, LIST_SESSIONS_REQUEST, m.prefix = TEXT("v"), m.limit = 3)
MAKE(fork, ForkSessionRequest, FORK_SESSION_REQUEST, m.from = TEXT("victim"), m.to = TEXT("f"),
     m.length = 128)
MAKE(touch, TouchSessionRequest, TOUCH_SESSION_REQUEST, m.session = victim,
     m.epoch = victim_epoch, m.ttl_ms = 100000, m.lease_ms = 1000)
MAKE(truncate, TruncateSessionRequest, TRUNCATE_SESSION_REQUEST, m.session = victim,
     m.epoch = victim_epoch, m.length = TOKENS)
MAKE(lookup, LookupRequest, LOOKUP_REQUEST, m.session = victim, m.tokens = TOKENS, m.layers = 1)
MAKE(manifest, GetManifestRequest, GET_MANIFEST_REQUEST, m.session = victim, m.blocks = 2)
MAKE(claim, ClaimBlocksRequest, CLAIM_BLOCKS_REQUEST, m.session = victim,
     m.epoch = victim_epoch, m.first_block = 1,
     m.block_ids = ((ProtobufCBinaryData){sizeof(fingerprint), fingerprint}))
MAKE(flush, FlushRequest, FLUSH_REQUEST, m.session = victim)
MAKE(stat, StatRequest, STAT_REQUEST, (void)0)

static const struct method {
    const char *name;
    size_t (*make)(uint8_t *out);
} methods[] = {
    {"Hello", make_hello},         {"RegisterModel", make_model},
    {"GetModel", make_get_model},  {"OpenSession", make_open},
    {"CloseSession", make_close},  {"GetSession", make_get},
    {"ListSessions", make_list},   {"ForkSession", make_fork},
    {"TouchSession", make_touch},  {"TruncateSession", make_truncate},
    {"Lookup", make_lookup},       {"GetManifest", make_manifest},
    {"ClaimBlocks", make_claim},   {"Append", make_append},
    {"AppendStream", make_append}, {"Flush", make_flush},
    {"Fetch", make_fetch},         {"Attend", make_attend},
    {"Stat", make_stat},           {"DropSession", make_drop},
};

/* ---- mutations --------------------------------------------------------------------------- */

/* An error may come, but not one that says that the server failed. */
static bool send(const struct method *method, const uint8_t *bytes, size_t n)
{
    static uint8_t out[64];
    struct raw_call call;
    char path[64];

    snprintf(path, sizeof(path), "/quire.v1.Quire/%s", method->name);
    const bool is_answered = raw_unary(&client, &call, path, bytes, n, out, sizeof(out)) >= 0;
    const bool is_failure = !is_answered && (call.status == GRPC_STATUS_UNKNOWN ||
                                             call.status == GRPC_STATUS_INTERNAL ||
                                             call.status == GRPC_STATUS_UNAVAILABLE ||
                                             call.status == GRPC_STATUS_DEADLINE_EXCEEDED);
    if (is_failure) {
        for (size_t i = 0; i < n; i++)
            fprintf(stderr, "%02x", bytes[i]);
        fail_msg(" is a %s that ends with status %d, %s", method->name, (int)call.status,
                 call.text);
    }
    answered += is_answered;
    refused += !is_answered;
    raw_end(&call);
    return is_answered;
}

static void each_byte(const struct method *method, const uint8_t *good, size_t n)
{
    static const uint8_t masks[] = {0x01, 0x08, 0x80, 0xff};
    uint8_t bytes[BYTES_MAX];

    for (size_t i = 0; i < n; i++) {
        for (size_t m = 0; m < ARRAY_LEN(masks); m++) {
            memcpy(bytes, good, n);
            bytes[i] ^= masks[m];
            (void)send(method, bytes, n);
        }
        (void)send(method, good, i); /* cut before it */
    }
}

/* The message twice, and with bytes of itself or of chance behind it. */
static void longer(const struct method *method, const uint8_t *good, size_t n)
{
    uint8_t bytes[2 * BYTES_MAX];

    memcpy(bytes, good, n);
    memcpy(bytes + n, good, n);
    for (size_t end = n; end <= 2 * n; end += n / 16 + 1)
        (void)send(method, bytes, end);
    (void)send(method, bytes, 2 * n);
    for (int i = 0; i < 16; i++) {
        for (size_t k = 0; k < 12; k++)
            bytes[n + k] = (uint8_t)roll(256);
        (void)send(method, bytes, n + 1 + roll(12));
    }
}

/* Several bytes, a piece moved, a piece put in twice: lengths inside come to lie. */
static void by_chance(const struct method *method, const uint8_t *good, size_t n)
{
    uint8_t bytes[2 * BYTES_MAX];

    for (int round = 0; round < RANDOM_ROUNDS && n > 0; round++) {
        size_t length = n;
        memcpy(bytes, good, n);
        for (uint32_t i = roll(6); i > 0; i--)
            bytes[roll((uint32_t)length)] = (uint8_t)roll(256);
        if (roll(2)) {
            const size_t at = roll((uint32_t)length), piece = roll((uint32_t)(length - at)) + 1;
            memmove(bytes + at + piece, bytes + at, length - at);
            length += piece;
        }
        if (roll(2)) {
            const size_t at = roll((uint32_t)length), piece = roll((uint32_t)(length - at)) + 1;
            memmove(bytes + at, bytes + at + piece, length - at - piece);
            length -= piece;
        }
        (void)send(method, bytes, length);
    }
}

static void witness_is_whole(void)
{
    static float back[TOKENS * DIM];
    void *tensors[] = {back};
    const struct quire_fetch fetch = {
        .tokens = TOKENS, .layers = 1, .dtype = QUIRE_F32, .value = tensors};

    if (quire_fetch(witness, &fetch))
        fail_msg("%s", quire_last_error()->text);
    for (size_t i = 0; i < ARRAY_LEN(back); i++)
        assert_true(fabsf(back[i] - kv[i]) < 0.1f); /* 4 bits over [-1, 1] */
}

static void nothing_fails_or_touches_others(void **state)
{
    uint8_t good[BYTES_MAX];
    (void)state;

    for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
        const struct method *method = &methods[i];
        renew_victim();
        size_t n = method->make(good);
        if (strcmp(method->name, "Flush") && strcmp(method->name, "ClaimBlocks"))
            assert_true(send(method, good, n)); /* it is good */
        each_byte(method, good, n);
        renew_victim();
        n = method->make(good);
        longer(method, good, n);
        by_chance(method, good, n);
        witness_is_whole();
    }
    print_message("%u answered, %u refused\n", answered, refused);
    assert_true(answered > 500 && refused > 500);
}

static void nothing_is_held(void **state)
{
    struct quire_metric metrics[256];
    size_t count = 0;
    (void)state;

    assert_ok(quire_stat(library, metrics, ARRAY_LEN(metrics), &count));
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(metrics[i].name, "server.pins"))
            assert_true(metrics[i].value == 0);
        if (!strcmp(metrics[i].name, "server.calls_live"))
            assert_true(metrics[i].value == 1); /* Stat itself */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_fails_or_touches_others),
        cmocka_unit_test(nothing_is_held),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
