#pragma once
// Launchers of the decode kernels; arguments and contracts: gemv_plan.h.

#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/dense/row_warps_plan.h"
#include "backend/cuda/launch/kernel_table.h"

#include <cuda_runtime_api.h>

namespace nibble::backend::cuda {

// Check the arguments (Error as check_args says), launch, return. plan: plan_gemv of the arguments' shape (gemv_plan.h
// shape_of). The kernels fetch their first weights before they wait for the one before.
void gemv_dense(const DenseArgs& args, const GemvPlan& plan, const Launch& on);
void gemv_qkv(const QkvArgs& args, const GemvPlan& plan, const Launch& on);
void route_logits(const RouterArgs& args, const Launch& on);
void gemv_moe_down(const GemvDownArgs& args, const GemvPlan& plan, const Launch& on);

void pack_weights(const PackArgs& args, cudaStream_t stream);
void quantize_weights(const QuantizeArgs& args, cudaStream_t stream);
void translate_weights(const TranslateArgs& args, cudaStream_t stream);

}  // namespace nibble::backend::cuda
