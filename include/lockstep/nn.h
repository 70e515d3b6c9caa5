/* SPDX-License-Identifier: BSD-3-Clause
 *
 * lockstep/nn.h - parameter sets, layers, models.
 *
 * A parameter set owns named parameters (trainable tensors) and buffers (running statistics). They are declared first,
 * then sealed, at the latest by the first optimizer, lks_dp or checkpoint load: sealing lays values out in one block
 * per dtype and gradients in a block of the same layout. Tensors handed out before stay valid. Later registration is
 * LKS_ERR_STATE.
 */
#ifndef LOCKSTEP_NN_H
#define LOCKSTEP_NN_H

#include <lockstep/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- parameter sets --------------------------------------------------------------------------------------------- */
/* An empty set. Local. */
LKS_API lks_status lks_params_create(lks_context *ctx, lks_params **ps);
/* Frees set and tensors; modules built on it must be freed before. *ps becomes NULL; NULL is fine. Local. */
LKS_API void lks_params_destroy(lks_params **ps);
/* Declares a parameter / a buffer, zero-filled. The set owns *t. Names are free UTF-8 text of 1 to 1024 bytes, unique
 * in the set ("" and duplicates: LKS_ERR_ARGUMENT). Parameters are floating. Local. */
LKS_API lks_status lks_params_add(lks_params *ps, const char *name, lks_dtype dtype, int ndim, const int64_t *shape,
                                  lks_tensor **t);
LKS_API lks_status lks_params_add_buffer(lks_params *ps, const char *name, lks_dtype dtype, int ndim,
                                         const int64_t *shape, lks_tensor **t);
/* Lays out the arenas; again is fine. Local. */
LKS_API lks_status lks_params_seal(lks_params *ps);
/* Parameters and buffers in order of declaration: number, name, tensor, whether it is a parameter. Local. */
LKS_API int lks_params_count(const lks_params *ps);
LKS_API const char *lks_params_name(const lks_params *ps, int i);
LKS_API lks_tensor *lks_params_tensor(const lks_params *ps, int i);
LKS_API int lks_params_is_buffer(const lks_params *ps, int i);
/* Index of a name or LKS_ERR_NOT_FOUND. Local. */
LKS_API int lks_params_find(const lks_params *ps, const char *name);
/* Number of trainable elements. Local. */
LKS_API int64_t lks_params_numel(const lks_params *ps);
/* Freezes or unfreezes one parameter; takes effect (buckets, updates) at the next lks_params_zero_grad. Local, the same
 * on every rank. */
LKS_API lks_status lks_params_set_trainable(lks_params *ps, int i, int on);
/* Marks every gradient absent. Local. */
LKS_API lks_status lks_params_zero_grad(lks_params *ps);

/* --- initialisers: in place, of any shape and floating dtype, drawn from the context's random numbers (replicated);
 * not recorded. All Local ---------------------------------------------------------------------------------------- */

/* Kaiming uniform with a = sqrt(5) as PyTorch's linear and conv layers use it: U(-1/sqrt(fan_in), 1/sqrt(fan_in)). */
LKS_API lks_status lks_init_kaiming_uniform(lks_tensor *w, int64_t fan_in);
/* N(0, std). Xavier uniform (Glorot & Bengio, 2010). Kaiming normal for relu (He et al., 2015). */
LKS_API lks_status lks_init_normal(lks_tensor *w, double std);
LKS_API lks_status lks_init_xavier_uniform(lks_tensor *w, int64_t fan_in, int64_t fan_out);
LKS_API lks_status lks_init_kaiming_normal(lks_tensor *w, int64_t fan_in);

/* --- modules ---------------------------------------------------------------------------------------------------------
 * Constructors declare parameters as "PREFIX.weight", ... in ps (prefix "" gives "weight") and initialise them as
 * PyTorch does. dtype of parameters is float32 unless the set was told otherwise. A module that contains others owns
 * them. Free with lks_module_destroy. All Local; the same calls in the same order on every rank. */

/* x [..., in] gives [..., out], indices of any shape [..., dim], x [N, in, H, W] what lks_conv2d says; a norm over the
 * last dim. weight [out, in], [count, dim], [out, in, kernel, kernel], [dim]; bias [out], [dim]. */
LKS_API lks_status lks_linear_create(lks_params *ps, const char *prefix, int64_t in, int64_t out, int bias,
                                     lks_module **m);
LKS_API lks_status lks_embedding_create(lks_params *ps, const char *prefix, int64_t count, int64_t dim, lks_module **m);
LKS_API lks_status lks_conv2d_create(lks_params *ps, const char *prefix, int64_t in, int64_t out, int64_t kernel,
                                     int64_t stride, int64_t padding, int bias, lks_module **m);
LKS_API lks_status lks_layer_norm_create(lks_params *ps, const char *prefix, int64_t dim, double eps, lks_module **m);
/* Buffers running_mean and running_var. What a forward pass in train mode, with gradients on, measures is staged and
 * becomes theirs when the step is applied. */
LKS_API lks_status lks_batch_norm2d_create(lks_params *ps, const char *prefix, int64_t channels, double momentum,
                                           double eps, lks_module **m);
/* lks_dropout with probability p in [0, 1) in train mode, its input itself in eval mode. */
LKS_API lks_status lks_dropout_create(lks_params *ps, double p, lks_module **m);
/* Multi-head self-attention, x [B, T, dim]: qkv projection, attention, output projection, dropout on both. Parameters
 * qkv.weight [3 dim, dim], qkv.bias, proj.weight, proj.bias, started as PyTorch's MultiheadAttention. */
LKS_API lks_status lks_attention_create(lks_params *ps, const char *prefix, int64_t dim, int64_t heads, int causal,
                                        double dropout, lks_module **m);
/* Recurrent layers (lks_rnn, lks_gru, lks_lstm; ops.h), batch first: x [N, T, in] gives y [N, T, hidden], or twice as
 * wide when bidirectional; dropout between layers in train mode. Parameters weight_ih_lK, weight_hh_lK, bias_ih_lK,
 * bias_hh_lK, and those with _reverse, all started from U(-1/sqrt(hidden), 1/sqrt(hidden)). */
LKS_API lks_status lks_rnn_create(lks_params *ps, const char *prefix, int64_t in, int64_t hidden, int64_t layers,
                                  int relu, int bidirectional, double dropout, lks_module **m);
LKS_API lks_status lks_gru_create(lks_params *ps, const char *prefix, int64_t in, int64_t hidden, int64_t layers,
                                  int bidirectional, double dropout, lks_module **m);
LKS_API lks_status lks_lstm_create(lks_params *ps, const char *prefix, int64_t in, int64_t hidden, int64_t layers,
                                   int bidirectional, double dropout, lks_module **m);
/* Forward of such a module with first states and lengths (LKS_NONE: zeros, all of T) and last states; c0 and cn are an
 * LSTM's. y, hn and cn may be NULL. */
LKS_API lks_status lks_recurrent_forward(lks_module *m, lks_tensor *x, lks_tensor *h0, lks_tensor *c0,
                                         lks_tensor *lengths, lks_tensor **y, lks_tensor **hn, lks_tensor **cn);
/* Linear layers of the n sizes given with relu and dropout between. x [..., sizes[0]]. Parameters 0.weight, 0.bias,
 * 1.weight, ... */
LKS_API lks_status lks_mlp_create(lks_params *ps, const char *prefix, int n, const int64_t *sizes, double dropout,
                                  lks_module **m);
/* Pre-norm decoder (GPT-2): token and learned position embeddings, `layers` blocks of attention and 4x GELU (tanh) MLP,
 * final norm, head tied to the token embedding. Input int64 [B, T], T <= context; output [B, T, vocab]. Parameters
 * token.weight, position.weight, blocks.I.{norm1, attention.qkv, attention.proj, norm2, fc, proj}.{weight, bias},
 * norm.weight, norm.bias; weights start from N(0, 0.02), those that write into the residual stream (attention.proj,
 * proj) from N(0, 0.02 / sqrt(2 layers)), biases 0. */
LKS_API lks_status lks_gpt_create(lks_params *ps, const char *prefix, int64_t vocab, int64_t context, int64_t layers,
                                  int64_t dim, int64_t heads, double dropout, lks_module **m);
/* Image classifier: `stages` of conv 3x3 - batch norm (if norm) - relu - max pool 2, widths width * 2^i, then dropout
 * and a linear layer. Input [N, channels, h, w]; output [N, classes]. Parameters stages.I.conv.weight (and .bias
 * without norm), stages.I.norm.{weight, bias, running_mean, running_var}, head.weight, head.bias. */
LKS_API lks_status lks_cnn_create(lks_params *ps, const char *prefix, int64_t channels, int64_t h, int64_t w,
                                  int64_t classes, int64_t width, int64_t stages, int norm, double dropout,
                                  lks_module **m);
/* Networks on fields with `dims` (1, 2, 3) spatial dims, x [N, channels, sizes...], any sizes of 1 and more. Blocks are
 * convolution 3 - group norm (if norm; up to 8 groups of 4 and more channels) - gelu (tanh), widths width * 2^i. What
 * does not halve is rounded up and cropped again on the way back. Beyond the border there are zeros, or the field again
 * (LKS_PADDING_PERIODIC). A sample's result does not hang on the other samples of its batch. */
enum lks_field_padding { LKS_PADDING_ZEROS, LKS_PADDING_PERIODIC };
/* U-Net (Ronneberger et al., 2015): `stages` halvings, two convolutions a block, transposed convolutions on the way up;
 * a last convolution of kernel 1 sees the input, too. Output [N, out, sizes...]; sizes may change from call to call.
 * dropout after the lowest block. Parameters down.I.{conv1, conv2, norm1, norm2}.{weight, bias}, up.I.conv,
 * up.I.{conv1, ...}, head. */
LKS_API lks_status lks_unet_create(lks_params *ps, const char *prefix, int dims, int64_t channels, int64_t out,
                                   int64_t width, int64_t stages, int norm, int padding, double dropout,
                                   lks_module **m);
/* Field of a fixed size (dims entries) to vector: `stages` of block and max pool 2, then dropout and a linear layer.
 * Output [N, out]. Parameters stages.I.{conv1, norm1}.{weight, bias}, head.weight, head.bias. */
LKS_API lks_status lks_field_net_create(lks_params *ps, const char *prefix, int dims, int64_t channels,
                                        const int64_t *size, int64_t out, int64_t width, int64_t stages, int norm,
                                        int padding, double dropout, lks_module **m);
LKS_API void lks_module_destroy(lks_module **m);

/* Output for x. Train mode (the default) turns dropout and batch statistics on; eval off; it applies to all modules
 * inside. Local. */
LKS_API lks_tensor *lks_module_forward(lks_module *m, lks_tensor *x);
LKS_API void lks_module_train(lks_module *m, int train);
/* Activation checkpointing (lks_recompute) of each direct part of m: of the blocks of a GPT, of the layers of an MLP,
 * of the stages of a CNN, of the blocks of a U-Net. Memory falls to what lies between the parts and one part's inside,
 * for the time of a second forward; results are the same bit for bit. Local. */
LKS_API void lks_module_recompute(lks_module *m, int on);

/* on: the batch norms in m, and in what it contains, take their statistics in train mode from all ranks
 * (lks_sync_batch_norm): forward and backward are then Collective, on ranks without samples as well (give them x with
 * no rows). Local, the same on every rank. */
LKS_API void lks_module_sync_batch_norm(lks_module *m, int on);

#ifdef __cplusplus
}
#endif
#endif
