#include "backend/cuda/card_member.h"

#include "backend/cuda/arch/arch.h"
#include "backend/ranks/ranks_backend.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <string>

namespace nibble::backend::cuda {
namespace {

std::vector<int> devices_of(const CudaSetup& setup, const Ranks& ranks) {
  if (!setup.devices.empty()) {
    check(std::ssize(setup.devices) == ranks.count, "a card for every rank");
    return setup.devices;
  }
  std::vector<int> first(static_cast<size_t>(ranks.count));
  std::iota(first.begin(), first.end(), 0);
  return first;
}

class CardCrew final : public Crew {
 public:
  CardCrew(const BackendConfig& whole, const RunConfig& run, const CudaSetup& setup,
           const std::vector<Arch>& architectures)
      : whole_(whole), run_(run), setup_(setup), architectures_(architectures), devices_(devices_of(setup, run.ranks)) {
    validate(run.ranks, whole.dims, whole.layer_experts);
    require_cards(*std::ranges::max_element(devices_) + 1, fmt::format("--tensor-parallel-size {}", run.ranks.count));
    if (run.ranks.count == 1) return;
    comm_.emplace(devices_);
    for (int rank = 0; rank < run.ranks.count; ++rank) ends_.push_back(comm_->of(rank));
  }

  [[nodiscard]] std::unique_ptr<Member> make(int rank) override {
    const Ranks& ranks = run_.ranks;
    RunConfig own = run_;
    own.threads = threads_of(rank, ranks, with_defaults(run_).threads);
    own.ranks = {};
    const auto idx = static_cast<size_t>(rank);
    CudaRank place{.device = devices_[idx]};
    if (comm_) place = {.device = devices_[idx], .comm = &ends_[idx], .whole = whole_.dims, .ranks = ranks};
    return make_card_member(cuda_config(whole_, ranks, rank), own, setup_, architectures_, place);
  }
  [[nodiscard]] bool is_bound() const override { return true; }
  void give_up() override {
    if (comm_) comm_->give_up();
  }
  [[nodiscard]] std::string name() const override {
    const auto cards = std::set(devices_.begin(), devices_.end()).size();
    return cards == devices_.size()
               ? fmt::format("{} cards", cards)
               : fmt::format("{} ranks on {} card{}", devices_.size(), cards, cards == 1 ? "" : "s");
  }
  [[nodiscard]] std::string place_of(int rank) const override {
    return fmt::format("card {}", devices_[static_cast<size_t>(rank)]);
  }

 private:
  const BackendConfig whole_;
  const RunConfig run_;
  const CudaSetup setup_;
  const std::vector<Arch> architectures_;
  const std::vector<int> devices_;  // by rank, as ends_
  std::optional<CommMemory> comm_;  // none: one rank
  std::vector<PeerComm> ends_;
};

}  // namespace

std::unique_ptr<Backend> make_cards_backend(const BackendConfig& config, const RunConfig& run, const CudaSetup& setup,
                                            const std::vector<Arch>& architectures) {
  return make_ranks_backend(config, run.ranks, std::make_unique<CardCrew>(config, run, setup, architectures));
}

}  // namespace nibble::backend::cuda
