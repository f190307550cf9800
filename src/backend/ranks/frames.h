#pragma once
// What ranks of several processes say to each other, as bytes: frames, and the values in their bodies. Nothing that is
// read is trusted: lengths and types are checked before they are used. Numbers are little-endian, as on every machine
// that this is built for.

#include "base/error.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace nibble::backend {

enum class FrameType : uint32_t {
  // Of the group (process_group.h).
  kHello,    // what a rank says of itself
  kWelcome,  // it belongs to the group
  kRefused,  // it does not: why
  kPulse,    // somebody is there
  kEnd,      // the work is done
  kFailed,   // it is not, and will not be: why
  // Of the work (process_ranks.h, step_ranks.h): rank 0 says what to do, a body of no bytes where the name says it all.
  kLimits,  // of a step, and how many KV pages there are
  kReady,   // a rank has its weights
  kStep,    // what the verbs of a step are told
  kCopyPage,
  kEmbed,
  kAttnIn,     // a layer
  kAttend,     // a layer
  kAttnOut,    // a layer; the rank answers with kDelta and gets the sum as one
  kRoute,      // a layer
  kMoe,        // as kAttnOut
  kLogits,     // the rank answers with kLogitRows
  kDelta,      // [tokens, hidden] in the type that the backend computes with
  kLogitRows,  // [logit rows, the rank's vocabulary] in float
  // Of members that run whole steps (step_ranks.h).
  kCard,     // which one a rank has
  kGroupId,  // by which the cards meet
  kRun,      // a whole step with its draws
  kDrawn,    // what rank 0 has drawn in the oldest step that was not told yet
};
inline constexpr int kFrameTypes = static_cast<int>(FrameType::kDrawn) + 1;
[[nodiscard]] std::string_view name_of(FrameType type);

struct Frame {
  FrameType type;
  std::vector<std::byte> body;
};

inline constexpr size_t kFrameHeaderBytes = 16;
[[nodiscard]] std::vector<std::byte> frame_header(FrameType type, size_t body_bytes);

// Frames out of the bytes of a connection, as they come.
class FrameReader {
 public:
  explicit FrameReader(size_t most_body_bytes) : most_body_bytes_(most_body_bytes) {}
  void allow(size_t most_body_bytes) { most_body_bytes_ = most_body_bytes; }
  void push(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  // The next whole one. Throws Error(kCorrupt) where the bytes are none.
  [[nodiscard]] std::optional<Frame> next();

 private:
  size_t most_body_bytes_;
  std::vector<std::byte> bytes_;  // of frames not taken yet
};

template <class T>
concept Plain = std::is_trivially_copyable_v<T>;

// A body in the making.
class BodyWriter {
 public:
  template <Plain T>
  void number(T value) {
    put(&value, sizeof value);
  }
  template <Plain T>
  void array(std::span<const T> values) {
    number(static_cast<uint64_t>(values.size()));
    put(values.data(), values.size_bytes());
  }
  void text(std::string_view value) { array(std::span(value.data(), value.size())); }
  template <Plain T>
  void bare(std::span<const T> values) {  // whose reader knows how many they are
    put(values.data(), values.size_bytes());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void put(const void* from, size_t count) {
    const auto* const at = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), at, at + count);
  }
  std::vector<std::byte> bytes_;
};

// Reads what a BodyWriter wrote. All throw Error(kCorrupt) where it holds something else.
class BodyReader {
 public:
  explicit BodyReader(const Frame& frame) : type_(frame.type), left_(frame.body) {}

  template <Plain T>
  [[nodiscard]] T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  template <Plain T>
  [[nodiscard]] std::vector<T> bare(size_t count) {
    if (count > left_.size() / sizeof(T)) refuse(fmt::format("{} more values", count));
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), take(count * sizeof(T)).data(), count * sizeof(T));
    return values;
  }
  template <Plain T>
  [[nodiscard]] std::vector<T> array(size_t most) {
    const auto count = number<uint64_t>();
    if (count > most) refuse(fmt::format("at most {} values", most), fmt::format("{}", count));
    return bare<T>(static_cast<size_t>(count));
  }
  [[nodiscard]] std::string text(size_t most) {
    const std::vector<char> letters = array<char>(most);
    return {letters.begin(), letters.end()};
  }
  void end() const {  // nothing is left
    if (!left_.empty()) refuse("its end");
  }

 private:
  [[nodiscard]] std::span<const std::byte> take(size_t count) {
    if (count > left_.size()) refuse(fmt::format("{} more bytes", count));
    const std::span<const std::byte> taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  [[noreturn]] void refuse(std::string_view want, std::string_view found = "") const;

  FrameType type_;
  std::span<const std::byte> left_;
};

}  // namespace nibble::backend
