// Level 1.5: which kernels must run under which settings, and which must not. On a CPU there are three kinds of
// evidence: what the backend says, the instruction sets of the functions that were called, and the numbers, since a
// rounding that was asked for changes the logits and no other may. On a card the launch counters show what ran.

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/program/program.h"
#include "base/error.h"
#include "lab/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

using backend::Activations;
using backend::CpuIsa;
using backend::RunConfig;
using backend::Stage;

constexpr int64_t kPathTokens = 48, kPathGenerated = 8;

std::string wrong_in_modes(const std::string& modes, const RunConfig& run) {
  const bool int8 = run.activations == Activations::kInt8;
  const std::string want = int8 ? "int8 activations" : "float activations";
  if (modes.find(want) == std::string::npos) return fmt::format("want {}, the backend says {}", want, modes);
  return {};
}

// Compared with the same run without any rounding.
std::string wrong_in_numbers(std::span<const float> exact, std::span<const float> logits, const RunConfig& run) {
  const bool rounded = backend::rounds(run.activations) || backend::type_of(run.kv_type()).lossy || run.dense.any();
  if (!rounded || !std::ranges::equal(exact, logits)) return {};
  return "the logits are those of the exact path, bit for bit: what was asked for did not run";
}

// What backend, calls and numbers show for a step of these tokens; empty: nothing is wrong.
std::string wrong_on_cpu(const RunConfig& run, std::span<const float> exact, const RunStep& step) {
  const RunConfig resolved = backend::resolved_cpu(run);
  std::string wrong = wrong_in_modes(step.modes, resolved);
  if (wrong.empty()) wrong = wrong_calls(run, step.called);
  if (wrong.empty() && !exact.empty()) wrong = wrong_in_numbers(exact, step.logits, resolved);
  return wrong;
}

// The settings below round safetensors checkpoints with MXFP4 experts.
bool has_mxfp4_experts(const VerifySubject& subject) {
  return stored_formats(subject.model, subject.source.weights)
             .of_role[static_cast<size_t>(backend::WeightRole::kGateUp)] == backend::WeightFormat::kMxfp4;
}

void verify_cpu(const VerifySubject& subject, VerifyChecks& checks) {
  if (!has_mxfp4_experts(subject))
    return checks.skip("kernels of the CPU", "what is known is of safetensors with MXFP4 experts");
  const std::vector<int32_t> tokens = verify_tokens(subject, kPathTokens);
  for (const auto& here : backend::cpu::kernels_here()) {
    RunConfig plain = exact_run(subject.model.run);
    plain.isa = here.isa;
    std::vector<float> exact;
    const auto verify = [&](const RunConfig& run) {
      RunStep step = run_step(subject, run, tokens);
      checks.add_unless(fmt::format("{}, activations {}, KV {}{}", name_of(run.isa), name_of(run.activations),
                                    backend::name_of(run.kv_type()), run.dense.any() ? ", dense layers mxfp4" : ""),
                        wrong_on_cpu(run, exact, step),
                        fmt::format("{}; called: {}", step.modes, fmt::join(step.called, " ")));
      return std::move(step.logits);
    };
    exact = verify(plain);
    const bool int8 = backend::cpu::kernels_for(here.isa).int8 != nullptr;
    for (const RunConfig& run : lossy_runs(plain))
      if ((int8 || run.activations != Activations::kInt8) && run.dense.qkv != backend::WeightFormat::kMxfp8)
        verify(run);
  }
}

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
  const backend::Backend& cuda = *on.backend;
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
  const std::set<std::string> ran = called_by(cuda);
  std::string missing, forbidden;
  for (const std::string& name : must)
    if (!ran.contains(name)) missing += " " + name;
  for (const std::string& name : must_not)
    if (ran.contains(name) && !must.contains(name)) forbidden += " " + name;
  checks.add_unless("planned kernels were launched", missing.empty() ? "" : "missing:" + missing,
                    fmt::format("{} kernels", must.size()));
  checks.add_unless("no other experts' kernel was launched", forbidden.empty() ? "" : "launched:" + forbidden,
                    fmt::format("{} watched for", must_not.size()));
}

}  // namespace

std::set<std::string> called_by(const backend::Backend& be) {
  std::set<std::string> names;
  for (const backend::KernelLaunches& launches : be.launches()) names.insert(std::string(launches.kernel));
  return names;
}

// Floats are multiplied by AVX2's functions, or AVX-512's where this CPU has what those want, or the baseline's.
std::string wrong_calls(const RunConfig& run, const std::set<std::string>& called) {
  const RunConfig asked = backend::resolved_cpu(run);
  const bool of_512 = asked.isa == CpuIsa::kAvx512 || asked.isa == CpuIsa::kAmx;
  const bool of_256 = asked.isa == CpuIsa::kAvx2 || asked.isa == CpuIsa::kAvxVnni;
  const CpuIsa floats = of_512 ? CpuIsa::kAvx512 : of_256 ? CpuIsa::kAvx2 : CpuIsa::kBaseline;
  const std::string name(name_of(asked.isa));
  std::set<std::string> must = {std::string(name_of(floats))}, may = must;
  if (asked.activations == Activations::kInt8) {
    may.insert(name);
    if (asked.isa != CpuIsa::kAmx) must.insert(name);  // whose tiles want many tokens of an expert
  }
  if (of_512 && backend::cpu::kernels_for(asked.isa).name.find("vnni") == std::string_view::npos)
    may.insert(std::string(name_of(CpuIsa::kAvx2)));  // with_avx512 (kernels.h): products stay AVX2's there
  if (std::ranges::includes(may, called) && std::ranges::includes(called, must)) return {};
  return fmt::format("asked for {}: want functions of {} alone, called were those of {}", name, fmt::join(may, " and "),
                     fmt::join(called, " and "));
}

std::string wrong_path(const VerifySubject& subject, const OnBackend& on, std::span<const float> exact) {
  const RunConfig& run = subject.model.run;
  if (run.backend == BackendKind::kCpu && has_mxfp4_experts(subject))
    return wrong_on_cpu(run, exact, run_step(on, verify_tokens(subject, kPathTokens)));
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
    case BackendKind::kCpu: return verify_cpu(subject, checks);
    case BackendKind::kCuda: return verify_card(subject, load(subject, subject.model.run, path_step(subject)), checks);
    default: return checks.skip("kernels", "the reference has plain loops only");
  }
}

}  // namespace nibble::app
