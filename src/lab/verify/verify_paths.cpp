// Level 1.5: which kernels must run under which settings, and which must not. On a CPU there are two kinds of evidence:
// what the plan and the backend say, and the numbers, since a rounding that was asked for changes the logits and no
// other may. On a card the launch counters show what ran.

#include "lab/verify/verify_subject.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/program/program.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

using backend::Activations;
using backend::CpuIsa;
using backend::KvDtype;
using backend::PlannedKernel;
using backend::RunConfig;
using backend::Stage;

constexpr int64_t kPathTokens = 48, kPathGenerated = 8;

// Words in kernel names that show a larger instruction set than `isa`.
std::vector<std::string> beyond(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kBaseline: return {"avx", "amx", "dotprod", "i8mm", "sdot", "smmla"};
    case CpuIsa::kAvx2:
    case CpuIsa::kAvxVnni: return {"avx512", "amx"};
    case CpuIsa::kAvx512: return {"amx"};
    case CpuIsa::kDotProd: return {"i8mm", "smmla"};
    default: return {};
  }
}

// A configuration of the CPU and its expected kernels.
struct CpuPath {
  CpuIsa isa;
  Activations activations = Activations::kF32;
  KvDtype kv = KvDtype::kBf16;
  bool dense_mxfp4 = false;

  [[nodiscard]] std::string name() const {
    return fmt::format("{}, activations {}, KV {}{}", name_of(isa), name_of(activations), backend::name_of(kv),
                       dense_mxfp4 ? ", dense layers mxfp4" : "");
  }
};

struct PathRule {
  Stage stage;
  std::string must;  // how it begins, after "multiply_" or "multiply_tiles_"
};

// A kernel's name without the way its work is divided.
std::string product_of(const std::string& kernel) {
  for (const std::string_view head : {"multiply_tiles_", "multiply_"})
    if (kernel.starts_with(head)) return kernel.substr(head.size());
  return kernel;
}

// REQUIRES a resolved run with MXFP4 experts and dense layers that come in bf16.
std::vector<PathRule> rules_of(const RunConfig& run) {
  const auto product = [](Activations activations, backend::WeightFormat format) {
    const bool int8 = activations == Activations::kInt8 && backend::cpu::int8_serves(format);
    return fmt::format("{}_{}", int8 ? "int8" : "f32", backend::name_of(format));
  };
  const auto dense = [&](const std::optional<backend::WeightFormat>& held) {
    return product(run.dense_activations, held.value_or(backend::WeightFormat::kBf16));
  };
  return {{Stage::kAttnIn, dense(run.dense.qkv)},
          {Stage::kAttend, fmt::format("attend_{}", backend::name_of(run.kv_type()))},
          {Stage::kAttnOut, dense(run.dense.o)},
          {Stage::kRoute, "f32_bf16"},
          {Stage::kMoe, product(run.activations, backend::WeightFormat::kMxfp4)},
          {Stage::kLogits, dense(run.dense.lm_head)}};
}

// What is wrong with the plan; empty: nothing.
std::string wrong_in_plan(const std::vector<PlannedKernel>& plan, const RunConfig& run) {
  for (const PathRule& rule : rules_of(run)) {
    bool ran = false;
    for (const PlannedKernel& stage : plan) {
      const bool told_of = stage.kernel.starts_with("multiply") || stage.kernel.starts_with("attend_");
      if (stage.stage != rule.stage || !told_of) continue;  // stages that only move values have no product
      ran = true;
      if (!product_of(stage.kernel).starts_with(rule.must))
        return fmt::format("{}: want {}, found {}", name_of(rule.stage), rule.must, stage.kernel);
    }
    if (!ran) return fmt::format("{}: want {}, found nothing", name_of(rule.stage), rule.must);
  }
  for (const PlannedKernel& stage : plan)
    for (const std::string& word : beyond(run.isa))
      if (stage.kernel.find(word) != std::string::npos)
        return fmt::format("{}: must not run {}", name_of(stage.stage), stage.kernel);
  return {};
}

std::string wrong_in_modes(const std::string& modes, const RunConfig& run) {
  const bool int8 = run.activations == Activations::kInt8;
  const std::string want = int8 ? "int8 activations" : "float activations";
  if (modes.find(want) == std::string::npos) return fmt::format("want {}, the backend says {}", want, modes);
  for (const std::string& word : beyond(run.isa))
    if (modes.find(word) != std::string::npos) return fmt::format("must not run {}, the backend says {}", word, modes);
  return {};
}

// Compared with the same run without any rounding.
std::string wrong_in_numbers(std::span<const float> exact, std::span<const float> logits, const RunConfig& run) {
  const bool rounded = backend::rounds(run.activations) || backend::type_of(run.kv_type()).lossy || run.dense.any();
  if (!rounded || !std::ranges::equal(exact, logits)) return {};
  return "the logits are those of the exact path, bit for bit: what was asked for did not run";
}

// What plan, backend and numbers show for a step of these tokens; empty: nothing is wrong.
std::string wrong_on_cpu(const VerifySubject& subject, const RunConfig& run, std::span<const float> exact,
                         const RunStep& step) {
  const auto count = static_cast<int32_t>(kPathTokens);
  const std::array row = {backend::Row{.tokens = count, .context = count}};
  const auto plan = backend::cpu_plan({.dims = subject.source.config.dims,
                                       .formats = backend::StoredFormats::of(subject.source.weights, run.dense),
                                       .step = {.rows = row, .logit_rows = kPathTokens},
                                       .run = run});
  const RunConfig resolved = backend::resolved_cpu(run);
  std::string wrong = wrong_in_plan(plan, resolved);
  if (wrong.empty()) wrong = wrong_in_modes(step.modes, resolved);
  if (wrong.empty() && !exact.empty()) wrong = wrong_in_numbers(exact, step.logits, resolved);
  return wrong;
}

// The table of kernels covers safetensors checkpoints with MXFP4 experts.
bool has_table(const VerifySubject& subject) {
  return stored_formats(subject.model, subject.source.weights)
             .of_role[static_cast<size_t>(backend::WeightRole::kGateUp)] == backend::WeightFormat::kMxfp4;
}

class CpuPaths {
 public:
  CpuPaths(const VerifySubject& subject, VerifyChecks& checks)
      : subject_(subject), checks_(checks), tokens_(verify_tokens(subject, kPathTokens)) {}

  void verify() {
    if (!has_table(subject_))
      return checks_.skip("kernels of the CPU", "the table is of safetensors with MXFP4 experts");
    for (const auto& here : backend::cpu::kernels_here()) {
      exact_.clear();
      exact_ = verify({.isa = here.isa});
      const bool int8 = backend::cpu::kernels_for(here.isa).int8 != nullptr;
      for (const Activations activations :
           {Activations::kInt8, Activations::kMxfp8, Activations::kMxfp6, Activations::kMxfp4})
        if (activations != Activations::kInt8 || int8) verify({.isa = here.isa, .activations = activations});
      for (const backend::KvType& kv : backend::kKvTypes)
        if (kv.lossy && kv.on.has(BackendKind::kCpu)) verify({.isa = here.isa, .kv = kv.dtype});
      verify({.isa = here.isa, .dense_mxfp4 = true});
    }
  }

 private:
  std::vector<float> verify(const CpuPath& path) {
    RunConfig run = exact_run(subject_.model.run);
    run.isa = path.isa;
    run.activations = path.activations;
    run.kv = path.kv;
    if (path.dense_mxfp4) run.dense.qkv = run.dense.o = run.dense.lm_head = backend::WeightFormat::kMxfp4;
    RunStep step = run_step(subject_, run, tokens_);
    const std::string wrong = wrong_on_cpu(subject_, run, exact_, step);
    checks_.add(path.name(), wrong.empty(), wrong.empty() ? step.modes : wrong);
    return std::move(step.logits);
  }

  const VerifySubject& subject_;
  VerifyChecks& checks_;
  const std::vector<int32_t> tokens_;
  std::vector<float> exact_;
};

// Names of the kernels that a program launches, for all stages or only the experts.
std::set<std::string> kernels_of(const backend::cuda::Program& program, bool experts_only) {
  std::set<std::string> names;
  for (const auto& node : program.nodes)
    if (!experts_only || node.stage == Stage::kMoe) names.insert(node.kernel);
  return names;
}

engine::EngineLimits path_limits(const VerifySubject& subject) {
  return one_sequence(subject.model, kPathTokens + kPathGenerated + 1);
}

// Runs one request, step by step: the kernels of its programs must have been launched, and those of other choices of
// --moe-kernel must not.
void verify_card(const VerifySubject& subject, const OnBackend& on, VerifyChecks& checks) {
  const auto card = backend::cuda_plan_device();
  check(card.has_value(), "a card that runs");
  const RunConfig& run = subject.model.run;
  const backend::BackendConfig of_a_rank = backend::cuda_config(on.config, run.ranks);
  const auto reduce = backend::cuda::planned_reduce(run.ranks);
  const auto& cuda = static_cast<const backend::CudaBackend&>(*on.backend);
  engine::Loop loop(*on.backend, on.model, path_limits(subject));
  std::set<std::string> must, must_not;
  loop.watch([&](const model::Step& step) -> model::Probe {
    const backend::StepShape shape{.rows = step.rows, .logit_rows = static_cast<int64_t>(step.logit_tokens.size())};
    const auto program_of = [&](backend::KernelFamily kernel) {
      RunConfig other = run;
      other.family = kernel;
      return backend::cuda::make_program(
          {.config = of_a_rank, .run = other, .step = shape, .card = *card, .reduce = reduce ? &*reduce : nullptr});
    };
    must.merge(kernels_of(program_of(cuda.kernel_family()), false));
    for (const auto kernel :
         {backend::KernelFamily::kStreaming, backend::KernelFamily::kGemm, backend::KernelFamily::kReference}) {
      try {
        must_not.merge(kernels_of(program_of(kernel), true));
      } catch (const Error&) {  // a choice that does not serve these shapes runs nothing
      }
    }
    return {};
  });
  loop.serve(
      {.prompt = verify_tokens(subject, kPathTokens), .max_tokens = kPathGenerated, .sampling = {.temperature = 0}},
      [](const engine::TokenEvent&) { return true; });
  std::set<std::string> ran;
  for (const backend::KernelLaunches& launches : cuda.launches()) ran.insert(std::string(launches.kernel));
  std::string missing, forbidden;
  for (const std::string& name : must)
    if (!ran.contains(name)) missing += " " + name;
  for (const std::string& name : must_not)
    if (ran.contains(name) && !must.contains(name)) forbidden += " " + name;
  checks.add("planned kernels were launched", missing.empty(),
             missing.empty() ? fmt::format("{} kernels", must.size()) : "missing:" + missing);
  checks.add("no other experts' kernel was launched", forbidden.empty(),
             forbidden.empty() ? fmt::format("{} watched for", must_not.size()) : "launched:" + forbidden);
}

}  // namespace

std::string wrong_path(const VerifySubject& subject, const OnBackend& on, std::span<const float> exact) {
  const RunConfig& run = subject.model.run;
  if (run.backend == BackendKind::kCpu && has_table(subject))
    return wrong_on_cpu(subject, run, exact, run_step(on, verify_tokens(subject, kPathTokens)));
  if (run.backend != BackendKind::kCuda) return {};
  VerifyChecks checks;
  verify_card(subject, on, checks);
  std::string wrong;
  for (const VerifyCheck& check : checks.all())
    if (check.verdict == Verdict::kFail) wrong += fmt::format("{}{}", wrong.empty() ? "" : "; ", check.found);
  return wrong;
}

model::StepLimits path_step(const VerifySubject& subject) {
  if (subject.model.run.backend != BackendKind::kCuda) return whole_step(kPathTokens);
  return engine::step_limits(path_limits(subject), subject.source.config.dims);
}

std::vector<float> exact_path(const VerifySubject& subject) {
  return run_step(subject, exact_run(subject.model.run), verify_tokens(subject, kPathTokens)).logits;
}

void verify_paths(const VerifySubject& subject, VerifyChecks& checks) {
  checks.begin(VerifyLevel::kPaths);
  switch (subject.model.run.backend) {
    case BackendKind::kCpu: return CpuPaths(subject, checks).verify();
    case BackendKind::kCuda: return verify_card(subject, load(subject, subject.model.run, path_step(subject)), checks);
    default: return checks.skip("kernels", "the reference has plain loops only");
  }
}

}  // namespace nibble::app
