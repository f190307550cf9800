#include "backend/ranks/frames.h"

#include <array>

namespace nibble::backend {
namespace {

constexpr uint32_t kFrameMagic = 0x4B52424E;  // "NBRK" as it lies in memory

struct FrameHeader {
  uint32_t magic;
  uint32_t type;
  uint64_t body_bytes;
};
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes);

}  // namespace

std::string_view name_of(FrameType type) {
  constexpr std::array<std::string_view, kFrameTypes> kNames = {
      "hello",  "welcome",   "refused",    "pulse",   "end",      "failed",   "limits", "ready",
      "step",   "copy_page", "embed",      "attn_in", "attend",   "attn_out", "route",  "moe",
      "logits", "delta",     "logit_rows", "card",    "group_id", "run",      "drawn"};
  return kNames[static_cast<size_t>(type)];
}

std::vector<std::byte> frame_header(FrameType type, size_t body_bytes) {
  const FrameHeader header{kFrameMagic, static_cast<uint32_t>(type), body_bytes};
  std::vector<std::byte> bytes(sizeof header);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

std::optional<Frame> FrameReader::next() {
  if (bytes_.size() < kFrameHeaderBytes) return std::nullopt;
  FrameHeader header{};
  std::memcpy(&header, bytes_.data(), sizeof header);
  if (header.magic != kFrameMagic) throw Error(Code::kCorrupt, "want frames of nibble, found other bytes");
  if (header.type >= kFrameTypes)
    throw Error(Code::kCorrupt, "want a frame's type below {}, found {}", kFrameTypes, header.type);
  if (header.body_bytes > most_body_bytes_)
    throw Error(Code::kCorrupt, "{} frame: want at most {} bytes, found {}",
                name_of(static_cast<FrameType>(header.type)), most_body_bytes_, header.body_bytes);
  const auto whole = kFrameHeaderBytes + static_cast<size_t>(header.body_bytes);
  if (bytes_.size() < whole) return std::nullopt;
  const auto begin = bytes_.begin() + kFrameHeaderBytes, end = bytes_.begin() + static_cast<std::ptrdiff_t>(whole);
  Frame frame{static_cast<FrameType>(header.type), {begin, end}};
  bytes_.erase(bytes_.begin(), end);
  return frame;
}

void BodyReader::refuse(std::string_view want, std::string_view found) const {
  throw Error(Code::kCorrupt, "{} frame: want {}, found {}", name_of(type_), want,
              found.empty() ? fmt::format("{} bytes", left_.size()) : std::string(found));
}

}  // namespace nibble::backend
