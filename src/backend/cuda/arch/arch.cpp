#include "backend/cuda/arch/arch.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace nibble::backend::cuda {

std::vector<Arch> architectures() { return {sm121(), sm90(), neutral()}; }

std::string missing_launcher(const Arch& arch) {
  const auto lacks = [](const auto& op) { return op.serve != nullptr && op.launch == nullptr; };
  const auto named = [&](std::string_view op) { return fmt::format("{}: {}", arch.name, op); };
  if (lacks(arch.gemm)) return named("gemm");
  if (lacks(arch.split_gemm)) return named("split_gemm");
  if (lacks(arch.norm_route)) return named("norm_route");
  if (lacks(arch.experts_gemm)) return named("experts_gemm");
  if (lacks(arch.prefill)) return named("prefill");
  if (!arch.peak.of.empty() && arch.peak.launch == nullptr) return named("peak");
  return {};
}

std::vector<Arch> with_launchers(std::vector<Arch> all, std::span<const Launchers> launchers) {
  for (const Launchers& own : launchers) {
    const auto arch = std::ranges::find(all, own.of, &Arch::name);
    check(arch != all.end(), "launchers are of an architecture in architectures()");
    arch->gemm.launch = own.gemm;
    arch->split_gemm.launch = own.split_gemm;
    arch->norm_route.launch = own.norm_route;
    arch->experts_gemm.launch = own.experts_gemm;
    arch->prefill.launch = own.prefill;
    arch->peak.launch = own.peak;
  }
  for (const Arch& arch : all) {
    const std::string missing = missing_launcher(arch);
    check(missing.empty(), fmt::format("built_architectures() has a launcher of {}", missing));
  }
  return all;
}

Card::Card(DeviceFacts its_facts, const std::vector<Arch>& all) : facts(std::move(its_facts)) {
  for (const Arch& arch : all)
    if (arch.runs_on(facts)) arches.push_back(arch);
  check(!arches.empty(), "some architecture runs on every card");
}

Tuned Card::tuned() const {
  const auto measured = std::ranges::find_if(arches, [](const Arch& arch) { return arch.tuned != nullptr; });
  check(measured != arches.end(), "the last architecture is measured, or guessed for");
  return measured->tuned(facts);
}

}  // namespace nibble::backend::cuda
