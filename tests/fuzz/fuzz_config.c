/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration reader on any bytes: it ends with a status, and what it
 * accepted survives being printed and read again.
 */
#include <stdlib.h>
#include <string.h>

#include "server/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
    if (!ok)
        abort();
}

static void reads_back(const struct qr_config *config)
{
    static struct qr_config again;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    must(out != NULL);
    qr_config_print(config, out);
    must(fclose(out) == 0);
    qr_config_defaults(&again);
    must(qr_config_yaml(&again, text, bytes, "printed", NULL) == QUIRE_OK);
    for (int i = 0; i < QR_OPTION_COUNT; i++) {
        must(again.values[i].number == config->values[i].number);
        must(!strcmp(again.values[i].text, config->values[i].text));
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct qr_config config;
    struct qr_error e;

    qr_config_defaults(&config);
    if (!qr_config_yaml(&config, (const char *)data, size, "input", &e))
        reads_back(&config);
    return 0;
}
