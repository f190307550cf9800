#include "backend/cuda/card_group.h"

#include "backend/cuda/card/device.h"
#include "backend/cuda/comm/nccl_comm.h"
#include "base/error.h"

#include <fmt/format.h>

#include <cstring>

namespace nibble::backend::cuda {
namespace {

constexpr int kFirstCard = 0;

NcclId id_of(std::span<const std::byte> bytes) {
  NcclId id{};
  if (bytes.size() != id.bytes.size())
    throw Error(Code::kCorrupt, "the id of a group of cards: want {} bytes, found {}", id.bytes.size(), bytes.size());
  std::memcpy(id.bytes.data(), bytes.data(), bytes.size());
  return id;
}

}  // namespace

std::string nccl_version() {
  const NcclLibrary library = nccl_library();
  if (!library.there) throw Error(Code::kUnsupported, "cuda: cards of several processes: {}", library.what);
  return library.what;
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

std::vector<std::byte> new_card_group_id() {
  const NcclId id = new_nccl_id();
  const std::span bytes = std::as_bytes(std::span(id.bytes));
  return {bytes.begin(), bytes.end()};
}

struct CardGroup::Impl {
  const NcclComm comm;
};

CardGroup::CardGroup(const Place& place)
    : impl_(new Impl{NcclComm({.id = id_of(place.id), .rank = place.rank, .ranks = place.ranks, .card = kFirstCard})}) {
}
CardGroup::~CardGroup() = default;
int CardGroup::rank() const { return impl_->comm.rank(); }
const Comm& CardGroup::comm() const { return impl_->comm; }
void CardGroup::give_up() const { impl_->comm.give_up(); }

}  // namespace nibble::backend::cuda
