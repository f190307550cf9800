#include "checkpoint/safetensors.h"

#include "checkpoint/testing.h"

#include <cstring>
#include <vector>

namespace nibble::checkpoint {
namespace {

using test::expect_error;
using test::ScratchDir;

// The bytes of a file with this header and so many data bytes 0, 1, 2, …, on an aligned address.
std::vector<std::byte> file_of(const std::string& header, size_t data_bytes) {
  std::vector<std::byte> file(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  std::memcpy(file.data() + 8, header.data(), header.size());
  for (size_t i = 0; i < data_bytes; ++i) file[8 + header.size() + i] = static_cast<std::byte>(i);
  return file;
}

// Padded to 8, as writers do.
std::string padded(std::string header) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return header;
}

void expect_corrupt(const std::string& header, size_t data_bytes, std::string_view message) {
  const auto file = file_of(header, data_bytes);
  expect_error([&] { (void)parse_safetensors(file, "f"); }, Code::kCorrupt, message);
}

// One tensor "t" with these fields.
std::string with_fields(const std::string& fields) { return padded("{\"t\":{" + fields + "}}"); }

TEST(safetensors, describes_tensors_in_the_order_of_their_bytes_without_copying) {
  const auto file = file_of(padded(R"({"__metadata__":{"format":"pt"},
      "b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},
      "a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},
      "s":{"dtype":"U8","shape":[],"data_offsets":[11,12]},
      "e":{"dtype":"F32","shape":[4,0],"data_offsets":[12,12]}})"),
                            12);
  const SafetensorsContent content = parse_safetensors(file, "f");
  ASSERT_EQ(content.entries.size(), 4u);
  EXPECT_EQ(content.entries[0].name, "a");
  EXPECT_EQ(content.entries[0].tensor.dtype, DType::kBf16);
  EXPECT_EQ(content.entries[0].tensor.shape, (Shape{2, 2}));
  EXPECT_EQ(content.entries[0].tensor.bytes.data(), file.data() + file.size() - 12);
  EXPECT_EQ(content.entries[1].name, "b");
  EXPECT_EQ(content.entries[1].tensor.bytes[0], std::byte{8});
  EXPECT_EQ(content.entries[2].tensor.bytes.size(), 1u);
  EXPECT_TRUE(content.entries[3].tensor.bytes.empty());
  EXPECT_EQ(content.metadata, (Metadata{{"format", "pt"}}));
}

TEST(safetensors, a_file_without_tensors_is_a_file) {
  EXPECT_TRUE(parse_safetensors(file_of("{}", 0), "f").entries.empty());
}

TEST(safetensors, refuses_less_than_8_bytes) {
  const std::vector<std::byte> file(7);
  expect_error([&] { (void)parse_safetensors(file, "f"); }, Code::kCorrupt,
               "f: want a safetensors file of at least 8 bytes, found 7");
  expect_error([&] { (void)parse_safetensors({}, "f"); }, Code::kCorrupt, "found 0");
}

TEST(safetensors, refuses_a_header_longer_than_the_file) {
  auto file = file_of("{}", 0);
  file[0] = std::byte{3};
  expect_error([&] { (void)parse_safetensors(file, "f"); }, Code::kCorrupt,
               "f: header of 3 bytes, but only 2 follow: is the file cut off?");
}

TEST(safetensors, refuses_a_header_above_the_limit) {
  auto file = file_of("{}", 0);
  std::memset(file.data(), 0xff, 8);
  expect_error([&] { (void)parse_safetensors(file, "f"); }, Code::kCorrupt,
               "f: header of 18446744073709551615 bytes, more than 100000000");
}

TEST(safetensors, refuses_bad_json) { expect_corrupt("{\"t\":", 0, "f: header: want JSON, found"); }

TEST(safetensors, refuses_deep_json) {
  expect_corrupt("{\"t\":" + std::string(100000, '['), 0, "f: header: JSON nests deeper");
}

TEST(safetensors, refuses_a_header_that_is_no_object) {
  expect_corrupt("[]", 0, "f: header: want an object, found []");
  expect_corrupt("", 0, "f: header: want JSON, found");
}

TEST(safetensors, refuses_an_entry_that_is_no_object) {
  expect_corrupt(R"({"t":7})", 0, "f: tensor t: want an object, found 7");
}

TEST(safetensors, refuses_a_missing_field) {
  expect_corrupt(with_fields(R"("shape":[1],"data_offsets":[0,1])"), 1, "f: tensor t: dtype is missing");
  expect_corrupt(with_fields(R"("dtype":"U8","data_offsets":[0,1])"), 1, "f: tensor t: shape is missing");
  expect_corrupt(with_fields(R"("dtype":"U8","shape":[1])"), 1, "f: tensor t: data_offsets is missing");
}

TEST(safetensors, refuses_an_unknown_field) {
  expect_corrupt(with_fields(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1])"), 1,
                 "f: tensor t: unknown field strides");
}

TEST(safetensors, refuses_an_unknown_dtype_by_name) {
  const auto file = file_of(with_fields(R"("dtype":"F4","shape":[2],"data_offsets":[0,1])"), 1);
  expect_error([&] { (void)parse_safetensors(file, "f"); }, Code::kUnsupported,
               "f: tensor t: dtype \"F4\" is not known here");
}

TEST(safetensors, refuses_a_dtype_that_is_no_string) {
  expect_corrupt(with_fields(R"("dtype":8,"shape":[1],"data_offsets":[0,1])"), 1,
                 "f: tensor t: dtype: want a string, found 8");
}

TEST(safetensors, refuses_a_shape_that_is_no_list_of_sizes) {
  expect_corrupt(with_fields(R"("dtype":"U8","shape":1,"data_offsets":[0,1])"), 1,
                 "f: tensor t: shape: want a list, found 1");
  for (const char* bad : {"-1", "1.0", "true", "\"1\"", "9223372036854775808", "1e3", "99999999999999999999"}) {
    expect_corrupt(with_fields(R"("dtype":"U8","shape":[)" + std::string(bad) + R"(],"data_offsets":[0,1])"), 1,
                   "f: tensor t: shape: want integers from 0 to 2^63-1, found ");
  }
}

TEST(safetensors, refuses_a_shape_that_overflows) {
  expect_corrupt(with_fields(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0,
                 "f: tensor t: U8 [4294967296,4294967296] overflows 63 bits");
  expect_corrupt(with_fields(R"("dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,0])"), 0,
                 "overflows 63 bits");
  expect_corrupt(with_fields(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"), 0,
                 "overflows 63 bits");
}

TEST(safetensors, refuses_reversed_offsets) {
  expect_corrupt(with_fields(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), 1,
                 "f: tensor t: data_offsets run backwards: [1, 0]");
}

TEST(safetensors, refuses_other_than_two_offsets) {
  expect_corrupt(with_fields(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 1,
                 "f: tensor t: data_offsets: want 2 numbers, found 1");
}

TEST(safetensors, refuses_negative_offsets) {
  expect_corrupt(with_fields(R"("dtype":"U8","shape":[1],"data_offsets":[-1,0])"), 1,
                 "f: tensor t: data_offsets: want integers from 0");
}

TEST(safetensors, refuses_offsets_behind_the_end) {
  expect_corrupt(with_fields(R"("dtype":"U8","shape":[9],"data_offsets":[0,9])"), 8,
                 "f: tensor t: ends at byte 9 of the data, but the file holds 8: is it cut off?");
}

TEST(safetensors, refuses_a_byte_count_that_is_not_the_shapes) {
  expect_corrupt(with_fields(R"("dtype":"BF16","shape":[2,2],"data_offsets":[0,7])"), 7,
                 "f: tensor t: BF16 [2,2] takes 8 bytes, but data_offsets give 7");
}

TEST(safetensors, refuses_overlaps) {
  expect_corrupt(
      padded(
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})"),
      7, "f: tensors a and b overlap at byte 3 of the data");
}

TEST(safetensors, refuses_holes) {
  expect_corrupt(
      padded(
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[6,10]}})"),
      10, "f: 2 bytes before tensor b belong to no tensor");
}

TEST(safetensors, refuses_trailing_bytes) {
  expect_corrupt(with_fields(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), 4,
                 "f: 3 bytes behind the last tensor belong to no tensor");
}

TEST(safetensors, refuses_a_name_given_twice) {
  expect_corrupt(
      padded(
          R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})"),
      2, "f: header: \"t\" is named twice in one object");
}

TEST(safetensors, refuses_metadata_other_than_strings) {
  expect_corrupt(R"({"__metadata__":{"a":1}})", 0, "f: __metadata__: a: want a string, found 1");
  expect_corrupt(R"({"__metadata__":[]})", 0, "f: __metadata__: want an object, found []");
}

TEST(safetensors, refuses_misaligned_tensors) {
  const auto file = file_of(
      padded(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"BF16","shape":[1],"data_offsets":[1,3]}})"),
      3);
  expect_error([&] { (void)parse_safetensors(file, "f"); }, Code::kUnsupported, "f: tensor b: BF16 at byte");
}

TEST(safetensors, escapes_names_in_messages) {
  expect_corrupt(R"({"a\u001b[31m":7})", 0, "f: tensor a\\u001b[31m: want an object");
}

TEST(safetensors, names_the_file) {
  const ScratchDir dir;
  const auto path = dir.write("cut.safetensors", "abc");
  expect_error([&] { SafetensorsFile file(path); }, Code::kCorrupt, path.string() + ": want a safetensors file");
  expect_error([&] { SafetensorsFile file(dir / "absent.safetensors"); }, Code::kIo, "absent.safetensors");
}

}  // namespace
}  // namespace nibble::checkpoint
