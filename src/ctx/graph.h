/* SPDX-License-Identifier: BSD-3-Clause
 *
 * graph.h - lks_graph as the context sees it. Private to this room.
 */
#ifndef LKSI_GRAPH_H
#define LKSI_GRAPH_H

#include "tensor/tensor.h"

void lksi_graphs_close(lks_context *ctx); /* those that the program left */

#endif
