#include "checkpoint/gguf_start.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace nibble::checkpoint {
namespace {

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}
std::string text(const std::string& value) { return raw(uint64_t{value.size()}) + value; }
std::string text_key(const std::string& key, const std::string& value) {
  return text(key) + raw(uint32_t{8}) + text(value);
}
std::string head(uint64_t keys) { return "GGUF" + raw(uint32_t{3}) + raw(uint64_t{0}) + raw(keys); }

std::string architecture(const std::string& start) { return gguf_architecture(start).value_or("none"); }

TEST(gguf_start, tells_the_architecture_wherever_its_key_stands) {
  const std::string it = text_key("general.architecture", "gpt-oss");
  EXPECT_EQ(architecture(head(1) + it), "gpt-oss");
  const std::string number = text("a") + raw(uint32_t{4}) + raw(uint32_t{1}),
                    flag = text("b") + raw(uint32_t{7}) + "\1";
  const std::string words = text("c") + raw(uint32_t{9}) + raw(uint32_t{8}) + raw(uint64_t{2}) + text("x") + text("yz");
  EXPECT_EQ(architecture(head(4) + number + flag + words + it + "more"), "gpt-oss");
}

TEST(gguf_start, tells_nothing_of_what_is_cut_or_odd) {
  const std::string whole = head(2) + text_key("name", "x") + text_key("general.architecture", "gpt-oss");
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_EQ(architecture(whole.substr(0, size)), "none") << size;
  EXPECT_EQ(architecture("PK" + whole), "none");
  EXPECT_EQ(architecture(head(1) + text("general.architecture") + raw(uint32_t{4}) + raw(uint32_t{1})), "none");
  EXPECT_EQ(architecture(head(1) + text("general.architecture") + raw(uint32_t{8}) + raw(UINT64_MAX) + "gpt-oss"),
            "none");
}

}  // namespace
}  // namespace nibble::checkpoint
