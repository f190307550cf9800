#include "backend/cuda/arch/arch.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace nibble::backend::cuda {

std::vector<Arch> architectures() { return {sm121(), sm90(), neutral()}; }

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
