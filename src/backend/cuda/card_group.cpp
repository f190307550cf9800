#include "backend/cuda/card_group.h"

#include "backend/cuda/card/device.h"
#include "backend/cuda/comm/comm.h"
#include "backend/ranks/followers.h"
#include "base/error.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int kFirstCard = 0;
}

std::string kind_of_card() {
  const DeviceFacts facts = open_device(kFirstCard);
  return fmt::format("sm_{}{}, {} multiprocessors", facts.major, facts.minor, facts.multiprocessors);
}

std::string id_of_card() {
  cudaDeviceProp properties{};
  cuda_check(cudaGetDeviceProperties(&properties, kFirstCard));
  std::string id = "GPU-";
  for (size_t i = 0; i < sizeof properties.uuid.bytes; ++i)
    id += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                      static_cast<unsigned char>(properties.uuid.bytes[i]));
  return id;
}

struct CardGroup::Impl {
  std::mutex mutex;
  bool given_up = false;       // guarded, with the next
  std::unique_ptr<Comm> comm;  // none: the ranks have not met
};

CardGroup::CardGroup() : impl_(std::make_unique<Impl>()) {}
CardGroup::~CardGroup() = default;

void CardGroup::meet(ProcessGroup& group, const std::string& card) {
  const std::vector<std::byte> bytes = agree_on_id(group, card, [] {
    const NcclId id = new_nccl_id();
    const std::span own = std::as_bytes(std::span(id.bytes));
    return std::vector(own.begin(), own.end());
  });
  NcclPlace place{.id = {}, .rank = group.rank(), .ranks = group.count(), .card = kFirstCard};
  if (bytes.size() != place.id.bytes.size())
    throw Error(Code::kCorrupt, "the id of a group of cards: want {} bytes, found {}", place.id.bytes.size(),
                bytes.size());
  std::memcpy(place.id.bytes.data(), bytes.data(), bytes.size());
  auto comm = make_nccl_comm(place);
  const std::lock_guard lock(impl_->mutex);
  impl_->comm = std::move(comm);
  if (impl_->given_up) impl_->comm->give_up();
}
const Comm& CardGroup::comm() const { return *impl_->comm; }

void CardGroup::give_up() {
  const std::lock_guard lock(impl_->mutex);
  impl_->given_up = true;
  if (impl_->comm) impl_->comm->give_up();
}

}  // namespace nibble::backend::cuda
