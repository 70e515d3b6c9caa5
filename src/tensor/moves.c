/* SPDX-License-Identifier: BSD-3-Clause
 *
 * moves.c - what steps move on the host, so that a replay, which launches a step without making its calls, can move it
 * as they would have. Knows lists of numbers only: each room gives those of its own objects.
 */
#include "tensor/tensor.h"

void lksi_mover_add(lks_context *ctx, lksi_mover *m, void *self, void (*list)(void *self, lksi_moves *m))
{
    m->self = self;
    m->list = list;
    m->next = ctx->movers;
    m->at = &ctx->movers;
    if (m->next) m->next->at = &m->next;
    ctx->movers = m;
}

void lksi_mover_remove(lksi_mover *m)
{
    if (!m->at) return;
    *m->at = m->next;
    if (m->next) m->next->at = m->at;
    m->at = NULL;
}

void lksi_fact(lksi_moves *m, int64_t fact)
{
    uint64_t h = (m->facts ^ (uint64_t)fact) * 0x9E3779B97F4A7C15u;
    m->facts = h ^ h >> 29;
}

void lksi_fact_at(lksi_moves *m, const void *p)
{
    lksi_fact(m, (int64_t)(intptr_t)p);
}

static void number(lksi_moves *m, int64_t *p)
{
    if (m->what == LKSI_MOVE && m->n < m->room) *p += m->value[m->n];
    if (m->what == LKSI_LOOK && m->n == m->room) {
        int64_t room = m->room ? 2 * m->room : 1024;
        int64_t *value = lksi_realloc(m->base, m->value, m->room * (int64_t)sizeof *value,
                                      room * (int64_t)sizeof *value);
        if (!value) {
            m->failed = 1;
            return;
        }
        m->value = value;
        m->room = room;
    }
    if (m->what == LKSI_LOOK) m->value[m->n] = *p;
    m->n++;
}

void lksi_counter(lksi_moves *m, int64_t *counter)
{
    number(m, counter);
}

void lksi_stamp(lksi_moves *m, int64_t *stamp, int64_t of)
{
    lksi_fact(m, *stamp - of);
    number(m, stamp);
}

void lksi_place(lksi_moves *m, int64_t *place)
{
    uint64_t h = (m->places ^ (uint64_t)*place) * 0x9E3779B97F4A7C15u;
    m->places = h ^ h >> 29;
    number(m, place);
}
