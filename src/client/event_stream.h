#pragma once
// Server-sent events: bytes as they come, to the data of whole events (WHATWG HTML, section 9.2).

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace nibble::client {

class EventStream {
 public:
  using OnData = std::function<void(std::string_view data)>;
  static constexpr size_t kMostEventBytes = size_t{16} << 20;

  // Tells of each event that is whole, of those that have data. False: an event is larger than kMostEventBytes.
  [[nodiscard]] bool take(std::string_view bytes, const OnData& on_data);

 private:
  void line(std::string_view text, const OnData& on_data);

  std::string part_;  // of a line
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;  // a line feed that comes next belongs to the line before
};

}  // namespace nibble::client
