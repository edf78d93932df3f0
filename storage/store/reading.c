/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads under way, so that a truncate can tell them: what stands past the cut afterwards is not
 * what they began to read, whether it is nothing or other rows.
 */
#include "store_impl.h"

void qr_reading_begin(struct qr_session *session, struct qr_reading *reading)
{
    *reading = (struct qr_reading){.next = session->readings};
    atomic_store(&reading->cut_to, UINT64_MAX);
    if (session->readings)
        session->readings->previous = reading;
    session->readings = reading;
}

void qr_reading_end(struct qr_session *session, struct qr_reading *reading)
{
    pthread_mutex_lock(&session->lock);
    if (reading->previous)
        reading->previous->next = reading->next;
    else
        session->readings = reading->next;
    if (reading->next)
        reading->next->previous = reading->previous;
    pthread_mutex_unlock(&session->lock);
}

void qr_reading_cut(struct qr_session *session, uint64_t length)
{
    for (struct qr_reading *reading = session->readings; reading; reading = reading->next) {
        if (length < atomic_load(&reading->cut_to))
            atomic_store(&reading->cut_to, length);
    }
}
