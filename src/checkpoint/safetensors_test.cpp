#include "checkpoint/safetensors.h"

#include "base/error.h"
#include "base/mmap_file.h"
#include "checkpoint/testing/files.h"

#include <fmt/format.h>

#include <csignal>
#include <cstring>
#include <stdexcept>
#include <vector>

#include <sys/resource.h>

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

// A header whose one tensor "t" has these fields.
std::string with_fields(const std::string& fields) { return padded("{\"t\":{" + fields + "}}"); }

TEST(safetensors, refuses_what_is_no_header_by_name) {
  const struct {
    std::string header;
    size_t data_bytes;
    std::string_view says;
  } cases[] = {
      {"", 0, "f: header: want JSON, found"},
      {"{\"t\":", 0, "f: header: want JSON, found"},
      {"{\"t\":" + std::string(100000, '['), 0, "f: header: JSON nests deeper"},
      {"[]", 0, "f: header: want an object, found []"},
      {R"({"t":7})", 0, "f: tensor t: want an object, found 7"},
      {R"({"a\u001b[31m":7})", 0, "f: tensor a\\u001b[31m: want an object"},
      {R"({"__metadata__":{"a":1}})", 0, "f: __metadata__: a: want a string, found 1"},
      {R"({"__metadata__":[]})", 0, "f: __metadata__: want an object, found []"},
      {with_fields(R"("shape":[1],"data_offsets":[0,1])"), 1, "f: tensor t: dtype is missing"},
      {with_fields(R"("dtype":"U8","data_offsets":[0,1])"), 1, "f: tensor t: shape is missing"},
      {with_fields(R"("dtype":"U8","shape":[1])"), 1, "f: tensor t: data_offsets is missing"},
      {with_fields(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1])"), 1,
       "f: tensor t: unknown field strides"},
      {with_fields(R"("dtype":8,"shape":[1],"data_offsets":[0,1])"), 1, "f: tensor t: dtype: want a string, found 8"},
      {with_fields(R"("dtype":"U8","shape":1,"data_offsets":[0,1])"), 1, "f: tensor t: shape: want a list, found 1"},
      {with_fields(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0,
       "f: tensor t: U8 [4294967296,4294967296] overflows 63 bits"},
      {with_fields(R"("dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,0])"), 0, "overflows 63 bits"},
      {with_fields(R"("dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0])"), 0, "overflows 63 bits"},
      {with_fields(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])"), 1,
       "f: tensor t: data_offsets run backwards: [1, 0]"},
      {with_fields(R"("dtype":"U8","shape":[1],"data_offsets":[0])"), 1,
       "f: tensor t: data_offsets: want 2 numbers, found 1"},
      {with_fields(R"("dtype":"U8","shape":[1],"data_offsets":[-1,0])"), 1,
       "f: tensor t: data_offsets: want integers from 0"},
      {with_fields(R"("dtype":"U8","shape":[9],"data_offsets":[0,9])"), 8,
       "f: tensor t: ends at byte 9 of the data, but the file holds 8: is it cut off?"},
      {with_fields(R"("dtype":"BF16","shape":[2,2],"data_offsets":[0,7])"), 7,
       "f: tensor t: BF16 [2,2] takes 8 bytes, but data_offsets give 7"},
      {with_fields(R"("dtype":"U8","shape":[1],"data_offsets":[0,1])"), 4,
       "f: 3 bytes behind the last tensor belong to no tensor"},
  };
  for (const auto& [header, data_bytes, says] : cases) expect_corrupt(header, data_bytes, says);
  for (const char* bad : {"-1", "1.0", "true", "\"1\"", "9223372036854775808", "1e3", "99999999999999999999"}) {
    expect_corrupt(with_fields(R"("dtype":"U8","shape":[)" + std::string(bad) + R"(],"data_offsets":[0,1])"), 1,
                   "f: tensor t: shape: want integers from 0 to 2^63-1, found ");
  }
  const auto unknown = file_of(with_fields(R"("dtype":"F4","shape":[2],"data_offsets":[0,1])"), 1);
  expect_error([&] { (void)parse_safetensors(unknown, "f"); }, Code::kUnsupported,
               "f: tensor t: dtype \"F4\" is not known here");
}

// Two tensors of bytes.
std::string two(const char* first, const char* second, const char* offsets) {
  return padded(fmt::format(R"({{"{}":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},)"
                            R"("{}":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                            first, second, offsets));
}

TEST(safetensors, refuses_tensors_that_do_not_lie_side_by_side) {
  expect_corrupt(two("a", "b", "[3,7]"), 7, "f: tensors a and b overlap at byte 3 of the data");
  expect_corrupt(two("a", "b", "[6,10]"), 10, "f: 2 bytes before tensor b belong to no tensor");
  expect_corrupt(two("t", "t", "[4,8]"), 8, "f: header: \"t\" is named twice in one object");
  const auto odd = file_of(padded(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                  R"("b":{"dtype":"BF16","shape":[1],"data_offsets":[1,3]}})"),
                           3);
  expect_error([&] { (void)parse_safetensors(odd, "f"); }, Code::kUnsupported, "f: tensor b: BF16 at byte");
}

TEST(safetensors, names_the_file) {
  const ScratchDir dir;
  const auto path = dir.write("cut.safetensors", "abc");
  expect_error([&] { SafetensorsFile file(path); }, Code::kCorrupt, path.string() + ": want a safetensors file");
  expect_error([&] { SafetensorsFile file(dir / "absent.safetensors"); }, Code::kIo, "absent.safetensors");
}

// Byte i of tensor t.
std::byte pattern(size_t tensor_idx, int64_t i) {
  return static_cast<std::byte>(31 * tensor_idx + static_cast<size_t>(i));
}

void fill_pattern(const TensorPiece& piece) {
  for (size_t i = 0; i < piece.bytes.size(); ++i)
    piece.bytes[i] = pattern(piece.tensor_idx, piece.offset_bytes + static_cast<int64_t>(i));
}

const std::vector<TensorSpec> kSpecs = {{"odd", DType::kU8, {3}},
                                        {"dense", DType::kBf16, {2, 5}},
                                        {"empty", DType::kF32, {0, 7}},
                                        {"wide", DType::kF32, {3}}};

TEST(write_safetensors, reads_back_for_any_piece_size) {
  const ScratchDir dir;
  std::string first;
  for (const int64_t piece_bytes : {int64_t{1}, int64_t{4}, int64_t{7}, std::numeric_limits<int64_t>::max()}) {
    write_safetensors(dir / "f.safetensors", {.tensors = kSpecs, .metadata = {{"k", "v"}}, .piece_bytes = piece_bytes},
                      fill_pattern);
    const SafetensorsFile file(dir / "f.safetensors");
    ASSERT_EQ(file.entries().size(), kSpecs.size());
    EXPECT_EQ(file.metadata(), (Metadata{{"k", "v"}}));
    for (const TensorEntry& entry : file.entries()) {
      size_t idx = 0;
      while (kSpecs[idx].name != entry.name) ++idx;
      EXPECT_EQ(entry.tensor.dtype, kSpecs[idx].dtype);
      EXPECT_EQ(entry.tensor.shape, kSpecs[idx].shape);
      for (size_t i = 0; i < entry.tensor.bytes.size(); ++i)
        EXPECT_EQ(entry.tensor.bytes[i], pattern(idx, static_cast<int64_t>(i))) << entry.name << " " << i;
    }
    const std::string bytes = read_text_file(dir / "f.safetensors", 1 << 20);
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
  }
  EXPECT_FALSE(std::filesystem::exists(dir / "f.safetensors.part"));
}

TEST(write_safetensors, writes_a_file_without_tensors) {
  const ScratchDir dir;
  write_safetensors(dir / "f.safetensors", {}, fill_pattern);
  EXPECT_TRUE(SafetensorsFile(dir / "f.safetensors").entries().empty());
}

TEST(write_safetensors, leaves_the_old_file_and_no_part_when_fill_throws) {
  const ScratchDir dir;
  dir.write("f.safetensors", "old");
  EXPECT_THROW(write_safetensors(dir / "f.safetensors", {.tensors = kSpecs},
                                 [](const TensorPiece&) { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_EQ(read_text_file(dir / "f.safetensors", 100), "old");
  EXPECT_FALSE(std::filesystem::exists(dir / "f.safetensors.part"));
}

TEST(write_safetensors, names_the_file_it_cannot_create) {
  const ScratchDir dir;
  expect_error([&] { write_safetensors(dir / "none/f.safetensors", {}, fill_pattern); }, Code::kIo,
               "/none/f.safetensors.part: cannot create: No such file or directory");
}

TEST(write_safetensors, reports_a_full_disk) {
  const ScratchDir dir;
  // A limit on the file size stands in for a full disk: the system refuses the write in the same way.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::vector<TensorSpec> specs = {{"t", DType::kU8, {100000}}};
  expect_error([&] { write_safetensors(dir / "f.safetensors", {.tensors = specs}, fill_pattern); }, Code::kIo,
               "f.safetensors.part: cannot write: File too large");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(write_safetensors, refuses_a_name_given_twice_and_impossible_shapes) {
  const ScratchDir dir;
  const auto write = [&](std::vector<TensorSpec> specs) {
    write_safetensors(dir / "f.safetensors", {.tensors = specs}, fill_pattern);
  };
  expect_error([&] { write({{"t", DType::kU8, {1}}, {"t", DType::kU8, {1}}}); }, Code::kInvalidRequest,
               "tensor name t is reserved or given twice");
  expect_error([&] { write({{"__metadata__", DType::kU8, {1}}}); }, Code::kInvalidRequest, "__metadata__ is reserved");
  expect_error([&] { write({{"t", DType::kU8, {-1}}}); }, Code::kInvalidRequest, "negative dimension in U8 [-1]");
}

}  // namespace
}  // namespace nibble::checkpoint
