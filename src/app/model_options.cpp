#include "app/model_options.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace nibble::app {

void add_load_format(CLI::App& app, LoadFormat& into) {
  add_choice<LoadFormat>(
      app, "--load-format",
      {into,
       {{"auto", LoadFormat::kAuto},
        {"safetensors", LoadFormat::kSafetensors},
        {"gguf", LoadFormat::kGguf},
        {"dummy", LoadFormat::kDummy}}},
      "dummy: random weights of the right shapes, nothing read but config.json or a GGUF file's keys");
}

void add_model_source(CLI::App& app, ModelOptions& o) {
  app.add_option("-m,--model", o.model,
                 "Model directory (Hugging Face layout or OpenAI's original/) or llama.cpp's .gguf file; with "
                 "--load-format dummy also gpt-oss-20b, gpt-oss-120b or tiny")
      ->required();
  add_load_format(app, o.load_format);
}

void add_kernels(CLI::App& app, ModelOptions& o) {
  app.add_option("-t,--threads", o.threads, "Threads; 0: one per core that this process may run on")
      ->transform(whole(0, 1024));
  add_choice<KvCacheDtype>(
      app, "--kv-cache-dtype",
      {o.kv_cache_dtype,
       {{"auto", KvCacheDtype::kAuto},
        {"bf16", KvCacheDtype::kBf16},
        {"f32", KvCacheDtype::kF32},
        {"fp8", KvCacheDtype::kFp8},
        {"int8", KvCacheDtype::kInt8}}},
      "Keys and values; auto: bf16, for compare f32; fp8: E4M3, lossy; int8 (cpu, reference): with a scale per head "
      "and token, lossy");
  add_choice<AttentionBackend>(
      app, "--attention-backend",
      {o.attention_backend,
       {{"auto", AttentionBackend::kAuto},
        {"flash", AttentionBackend::kFlash},
        {"reference", AttentionBackend::kReference}}},
      "Attention kernels of cuda; auto: flash where it serves the shapes and pages of bf16 or fp8");
  add_choice<MoeActivation>(
      app, "--moe-activation",
      {o.moe_activation,
       {{"auto", MoeActivation::kAuto},
        {"f32", MoeActivation::kF32},
        {"int8", MoeActivation::kInt8},
        {"mxfp8", MoeActivation::kMxfp8}}},
      "What the experts multiply; auto: cpu: int8 where there are instructions for it, else f32; others: exact; f32 (cpu): "
      "exact; int8 (cpu: also what Q8_0 weights multiply; faster, lossy; prompts on AMX: bf16); int8 (cuda, with --moe-kernel gemv), mxfp8 (cuda): rounded in blocks of 32, lossy; reference has both, for comparison");
  add_choice<CpuIsaChoice>(app, "--cpu-isa",
                           {o.cpu_isa,
                            {{"auto", CpuIsaChoice::kAuto},
                             {"baseline", CpuIsaChoice::kBaseline},
                             {"avx2", CpuIsaChoice::kAvx2},
                             {"avxvnni", CpuIsaChoice::kAvxVnni},
                             {"avx512", CpuIsaChoice::kAvx512},
                             {"amx", CpuIsaChoice::kAmx}}},
                           "CPU: instruction set; auto: the best there is");
  using backend::MoeKernel;
  add_choice<MoeKernel>(
      app, "--moe-kernel",
      {o.moe_kernel,
       {{"auto", MoeKernel::kAuto},
        {"marlin", MoeKernel::kMarlin},
        {"gemm", MoeKernel::kGemm},
        {"gemv", MoeKernel::kGemv},
        {"reference", MoeKernel::kReference}}},
      "cuda: who multiplies; marlin: streaming kernels for few tokens; gemm: those up to 8 tokens, tensor-core GEMMs "
      "for more; auto: each where it is faster; gemv: experts on dp4a, activations in int8, lossy; all else as auto");
  app.add_flag("--enforce-eager", o.enforce_eager, "cuda: launch every kernel of a step; no CUDA graphs");
  add_dense_format(app, "--mxfp4-layers", backend::WeightFormat::kMxfp4, o.dense);
  add_dense_format(app, "--mxfp8-layers", backend::WeightFormat::kMxfp8, o.dense);
}

void add_runtime(CLI::App& app, ModelOptions& o) {
  add_seed(app, "--dummy-seed", o.dummy_seed, "Seed of the dummy weights");
  add_kernels(app, o);
  app.add_flag("--no-mmap", o.copy_weights,
               "CPU: weights are copied to memory of their own, on huge pages: reads are faster, the start is slower, "
               "and nothing is shared with other processes");
  add_choice<bool>(app, "--attention-sinks", {o.attention_sinks, {{"auto", true}, {"on", true}, {"off", false}}},
                   "off shows what the model loses without them");
}

void add_limits(CLI::App& app, ModelOptions& o, const ContextWords& context) {
  app.add_option("--max-model-len", o.max_model_len, "Context in tokens: prompt and answer together")
      ->transform(whole(1, 1 << 24, context.fits))
      ->default_str(context.usual);
  app.add_option("--max-num-batched-tokens", o.max_num_batched_tokens, "Most prompt tokens computed in one step")
      ->transform(whole(1, 65536))
      ->default_str(o.max_num_batched_tokens > 0
                        ? fmt::format("{}", o.max_num_batched_tokens)
                        : fmt::format("{}, with --backend cuda {}", kHostStepTokens, kCardStepTokens));
  app.add_option_function<double>(
         "--gpu-memory-utilization", [&o](double share) { o.gpu_memory_utilization = share; },
         "Share of the card's memory to use at most, with --backend cuda; default 0.92")
      ->check(finite)
      ->check(CLI::Range(0.01, 1.0));
}

Choice<BackendKind> backends(BackendKind& into) {
  return {into, {{"cpu", BackendKind::kCpu}, {"cuda", BackendKind::kCuda}, {"reference", BackendKind::kReference}}};
}

void add_backend(CLI::App& app, ModelOptions& o) {
  add_choice(app, "--backend", backends(o.backend), "cuda: an NVIDIA card; reference: plain loops, slow, the oracle");
}

}  // namespace nibble::app
