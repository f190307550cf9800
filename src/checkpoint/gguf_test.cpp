#include "checkpoint/gguf.h"

#include "base/mmap_file.h"
#include "checkpoint/testing/gguf.h"
#include "checkpoint/testing/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace nibble::checkpoint {
namespace {

using test::AlignedBytes;
using test::expect_error;
using test::gguf_array;
using test::gguf_file;
using test::gguf_key;
using test::gguf_string;
using test::gguf_tensor;
using test::GgufParts;
using test::le;
using testing::ElementsAre;

constexpr uint32_t kF32 = 0, kF16 = 1, kIq2Xxs = 16, kQ8 = 8, kMxfp4 = 39;

// Two keys, a [2, 3] F32 tensor of 24 bytes and behind it, at 32, one MXFP4 row of 64.
GgufParts good() {
  return {.keys = {gguf_key("general.architecture", GgufType::kString, gguf_string("gpt-oss")),
                   gguf_key("a.count", GgufType::kU32, le(uint32_t{7}))},
          .tensors = {gguf_tensor("small", {3, 2}, kF32, 0), gguf_tensor("experts", {64}, kMxfp4, 32)},
          .data = std::string(32, 'a') + std::string(34, 'b')};
}

TEST(Gguf, describes_keys_and_tensors_with_dimensions_turned_to_row_major) {
  for (const uint32_t version : {2u, 3u}) {
    GgufParts parts = good();
    parts.version = version;
    const AlignedBytes file(gguf_file(parts));
    const GgufContent content = parse_gguf(file.bytes(), "f");
    ASSERT_EQ(content.tensors.size(), 2u);
    EXPECT_EQ(content.tensors[0].name, "small");
    EXPECT_EQ(content.tensors[0].tensor.dtype, DType::kF32);
    EXPECT_THAT(content.tensors[0].tensor.shape, ElementsAre(2, 3));
    EXPECT_EQ(content.tensors[0].tensor.bytes.size(), 24u);
    EXPECT_EQ(content.tensors[1].tensor.bytes.size(), 34u);
    EXPECT_EQ(content.tensors[1].tensor.bytes.data() - content.tensors[0].tensor.bytes.data(), 32);
    EXPECT_EQ(content.tensors[1].tensor.bytes[33], std::byte{'b'});
    const GgufFields fields(content.metadata, "f");
    EXPECT_EQ(fields.string("general.architecture"), "gpt-oss");
    EXPECT_EQ(fields.integer("a.count", 0, 10), 7);
  }
}

TEST(Gguf, tensors_are_sorted_by_their_offsets) {
  GgufParts parts = good();
  std::swap(parts.tensors[0], parts.tensors[1]);
  const AlignedBytes file(gguf_file(parts));
  EXPECT_EQ(parse_gguf(file.bytes(), "f").tensors[0].name, "small");
}

TEST(Gguf, the_alignment_is_the_files) {
  GgufParts parts = good();
  parts.keys.push_back(gguf_key("general.alignment", GgufType::kU32, le(uint32_t{128})));
  parts.tensors[1] = gguf_tensor("experts", {64}, kMxfp4, 128);
  parts.alignment = 128;
  parts.data = std::string(128, 'a') + std::string(34, 'b');
  const AlignedBytes file(gguf_file(parts));
  const GgufContent content = parse_gguf(file.bytes(), "f");
  EXPECT_EQ((content.tensors[1].tensor.bytes.data() - file.bytes().data()) % 128, 0);
  EXPECT_EQ(content.tensors[1].tensor.bytes[0], std::byte{'b'});
}

TEST(Gguf, padding_behind_the_last_tensor_may_be_there_or_not) {
  GgufParts parts = good();
  parts.data += std::string(30, '\0');
  const AlignedBytes file(gguf_file(parts));
  EXPECT_EQ(parse_gguf(file.bytes(), "f").tensors[1].tensor.bytes.size(), 34u);
}

TEST(Gguf, every_prefix_of_a_file_is_refused) {
  const std::string whole = gguf_file(good());
  for (size_t size = 0; size < whole.size(); ++size) {
    const AlignedBytes file(whole.substr(0, size));
    EXPECT_THROW(static_cast<void>(parse_gguf(file.bytes(), "f")), Error) << size;
  }
}

struct Hostile {
  const char* name;
  void (*damage)(GgufParts&);
  Code code;
  const char* says;
};

constexpr uint64_t kHuge = uint64_t{1} << 62;

const Hostile kHostile[] = {
    {"magic", [](GgufParts& p) { p.magic = "GGML"; }, Code::kCorrupt, "begins with \"GGUF\", found \"GGML\""},
    {"version 0", [](GgufParts& p) { p.version = 0; }, Code::kUnsupported, "want GGUF version 2 or 3, found 0"},
    {"version 1", [](GgufParts& p) { p.version = 1; }, Code::kUnsupported, "want GGUF version 2 or 3, found 1"},
    {"version 4", [](GgufParts& p) { p.version = 4; }, Code::kUnsupported, "found 4"},
    {"absurd version", [](GgufParts& p) { p.version = 0x12345678; }, Code::kUnsupported, "found 305419896"},
    {"big-endian", [](GgufParts& p) { p.version = 0x03000000; }, Code::kUnsupported, "little-endian"},
    {"keys that are not there",
     [](GgufParts& p) {
       p.more_keys = 1;
       p.tensors.clear();
       p.data.clear();
     },
     Code::kCorrupt, "metadata key 2: its name takes 8 bytes"},
    {"billions of keys", [](GgufParts& p) { p.more_keys = kHuge; }, Code::kCorrupt, "want at most 65536 metadata keys"},
    {"billions of tensors", [](GgufParts& p) { p.more_tensors = kHuge; }, Code::kCorrupt, "at most 65536 tensors"},
    {"tensors that are not there",
     [](GgufParts& p) {
       p.more_tensors = 1;
       p.data.clear();
     },
     Code::kCorrupt, "tensor 2: its name takes 8 bytes at byte"},
    {"a key twice", [](GgufParts& p) { p.keys[1] = p.keys[0]; }, Code::kCorrupt,
     "metadata key general.architecture: it occurs twice"},
    {"an empty key", [](GgufParts& p) { p.keys[1] = gguf_key("", GgufType::kU32, le(1u)); }, Code::kCorrupt,
     "metadata key 1: want a name in ASCII"},
    {"a key of control characters", [](GgufParts& p) { p.keys[1] = gguf_key("a\n\x1b[1m", GgufType::kU32, le(1u)); },
     Code::kCorrupt, "found \"a\\n\\u001b[1m\""},
    {"a key longer than the format's",
     [](GgufParts& p) { p.keys[1] = gguf_key(std::string(65536, 'k'), GgufType::kU32, le(1u)); }, Code::kCorrupt,
     "its name: want at most 65535 bytes, found 65536"},
    {"a key's length beyond the file", [](GgufParts& p) { p.keys[1] = le(uint64_t{60000}) + "key"; }, Code::kCorrupt,
     "its name takes 60000 bytes at byte"},
    {"an unknown value type", [](GgufParts& p) { p.keys[1] = gguf_string("k") + le(13u) + le(0u); }, Code::kCorrupt,
     "metadata key k: want a type from 0 to 12, found 13"},
    {"an array of arrays",
     [](GgufParts& p) { p.keys[1] = gguf_key("k", GgufType::kArray, gguf_array(GgufType::kArray, 0, "")); },
     Code::kUnsupported, "metadata key k: want no arrays in an array"},
    {"an array's length beyond all",
     [](GgufParts& p) { p.keys[1] = gguf_key("k", GgufType::kArray, gguf_array(GgufType::kU8, kHuge, "")); },
     Code::kCorrupt, "want at most 16777216 elements, found 4611686018427387904"},
    {"an array's length beyond the file",
     [](GgufParts& p) { p.keys[1] = gguf_key("k", GgufType::kArray, gguf_array(GgufType::kF64, 1 << 20, "")); },
     Code::kCorrupt, "1048576 elements take at least 8388608 bytes"},
    {"a string array's length beyond the file",
     [](GgufParts& p) { p.keys[1] = gguf_key("k", GgufType::kArray, gguf_array(GgufType::kString, 1 << 20, "")); },
     Code::kCorrupt, "1048576 elements take at least 8388608 bytes"},
    {"a string's length beyond the file",
     [](GgufParts& p) { p.keys[1] = gguf_key("k", GgufType::kString, le(kHuge) + "text"); }, Code::kCorrupt,
     "a string: want at most"},
    {"a bool of 2", [](GgufParts& p) { p.keys[1] = gguf_key("k", GgufType::kBool, "\x02"); }, Code::kCorrupt,
     "want a bool, 0 or 1, found 2"},
    {"an alignment of 0", [](GgufParts& p) { p.keys[1] = gguf_key("general.alignment", GgufType::kU32, le(0u)); },
     Code::kCorrupt, "general.alignment: want an integer from 8 to 65536, found u32 0"},
    {"an alignment of 24", [](GgufParts& p) { p.keys[1] = gguf_key("general.alignment", GgufType::kU32, le(24u)); },
     Code::kCorrupt, "general.alignment: want a power of two, found 24"},
    {"an alignment in words",
     [](GgufParts& p) { p.keys[1] = gguf_key("general.alignment", GgufType::kString, gguf_string("32")); },
     Code::kCorrupt, "general.alignment: want an integer from 8 to 65536, found the string \"32\""},
    {"another alignment than the offsets'",
     [](GgufParts& p) { p.keys[1] = gguf_key("general.alignment", GgufType::kU32, le(64u)); }, Code::kCorrupt,
     "tensor experts: want its bytes at offset 64 of the data"},
    {"a tensor twice", [](GgufParts& p) { p.tensors[1] = p.tensors[0]; }, Code::kCorrupt,
     "tensor small: it occurs twice"},
    {"a tensor's name longer than the format's",
     [](GgufParts& p) { p.tensors[0] = gguf_tensor(std::string(65, 'n'), {3, 2}, kF32, 0); }, Code::kCorrupt,
     "its name: want at most 64 bytes, found 65"},
    {"no dimension", [](GgufParts& p) { p.tensors[0] = gguf_tensor("t", {}, kF32, 0); }, Code::kCorrupt,
     "tensor t: want 1 to 4 dimensions, found 0"},
    {"five dimensions", [](GgufParts& p) { p.tensors[0] = gguf_tensor("t", {1, 1, 1, 1, 1}, kF32, 0); }, Code::kCorrupt,
     "tensor t: want 1 to 4 dimensions, found 5"},
    {"billions of dimensions", [](GgufParts& p) { p.tensors[0] = gguf_string("t") + le(0xffffffffu); }, Code::kCorrupt,
     "found 4294967295"},
    {"an empty dimension", [](GgufParts& p) { p.tensors[0] = gguf_tensor("t", {3, 0}, kF32, 0); }, Code::kCorrupt,
     "dimensions of at least 1, found F32 [0,3]"},
    {"a negative dimension", [](GgufParts& p) { p.tensors[0] = gguf_tensor("t", {3, ~uint64_t{0}}, kF32, 0); },
     Code::kCorrupt, "found F32 [-1,3]"},
    {"more bytes than can be counted",
     [](GgufParts& p) { p.tensors[0] = gguf_tensor("t", {uint64_t{1} << 32, uint64_t{1} << 31}, kF32, 0); },
     Code::kCorrupt, "F32 [2147483648,4294967296] overflows 63 bits"},
    {"half a block", [](GgufParts& p) { p.tensors[1] = gguf_tensor("t", {48}, kQ8, 32); }, Code::kCorrupt,
     "want rows of whole blocks of 32 values, found Q8_0 [48]"},
    {"another quantisation", [](GgufParts& p) { p.tensors[1] = gguf_tensor("t", {256}, kIq2Xxs, 32); },
     Code::kUnsupported,
     "tensor t: want MXFP4, a float, Q4_0 to Q8_0, Q2_K to Q6_K, IQ4_NL or IQ4_XS as its type, found IQ2_XXS"},
    {"an unknown type", [](GgufParts& p) { p.tensors[1] = gguf_tensor("t", {256}, 12345, 32); }, Code::kUnsupported,
     "found number 12345"},
    {"tensors that overlap", [](GgufParts& p) { p.tensors[1] = gguf_tensor("experts", {64}, kMxfp4, 0); },
     Code::kCorrupt, "where small ends, aligned to 32, found offset 0: they overlap"},
    {"a hole",
     [](GgufParts& p) {
       p.tensors[1] = gguf_tensor("experts", {64}, kMxfp4, 64);
       p.data += std::string(32, 'c');
     },
     Code::kCorrupt, "tensor experts: want its bytes at offset 32 of the data"},
    {"an offset off the alignment", [](GgufParts& p) { p.tensors[1] = gguf_tensor("experts", {64}, kMxfp4, 24); },
     Code::kCorrupt, "want its bytes at offset 32 of the data, where small ends, aligned to 32, found offset 24"},
    {"a first tensor not at the beginning", [](GgufParts& p) { p.tensors = {gguf_tensor("t", {64}, kMxfp4, 32)}; },
     Code::kCorrupt, "want its bytes at offset 0 of the data, where they begin, found offset 32"},
    {"an offset beyond all", [](GgufParts& p) { p.tensors[1] = gguf_tensor("experts", {64}, kMxfp4, kHuge); },
     Code::kCorrupt, "found offset 4611686018427387904"},
    {"data that are cut off", [](GgufParts& p) { p.data.pop_back(); }, Code::kCorrupt,
     "tensor experts: MXFP4 [64] takes 34 bytes at byte"},
    {"a tensor larger than the file",
     [](GgufParts& p) { p.tensors[1] = gguf_tensor("t", {uint64_t{1} << 40}, kF16, 32); }, Code::kCorrupt,
     "takes 2199023255552 bytes at byte"},
    {"bytes behind the last tensor", [](GgufParts& p) { p.data += std::string(64, 'x'); }, Code::kCorrupt,
     "64 bytes behind the last tensor belong to no tensor"},
    {"a byte behind the last tensor's padding", [](GgufParts& p) { p.data += std::string(31, 'x'); }, Code::kCorrupt,
     "31 bytes behind the last tensor belong to no tensor"},
};

TEST(Gguf, damaged_files_are_refused_with_what_was_wanted_and_found) {
  for (const Hostile& hostile : kHostile) {
    SCOPED_TRACE(hostile.name);
    GgufParts parts = good();
    hostile.damage(parts);
    const AlignedBytes file(gguf_file(parts));
    expect_error([&] { static_cast<void>(parse_gguf(file.bytes(), "f")); }, hostile.code, hostile.says);
    expect_error([&] { static_cast<void>(parse_gguf(file.bytes(), "f")); }, hostile.code, "f: ");
  }
}

// Every type of value once.
struct Values {
  Values() {
    const auto add = [&](const char* key, GgufType type, const std::string& value) {
      parts.keys.push_back(gguf_key(key, type, value));
    };
    add("u8", GgufType::kU8, le(uint8_t{200}));
    add("i8", GgufType::kI8, le(int8_t{-3}));
    add("u16", GgufType::kU16, le(uint16_t{60000}));
    add("i16", GgufType::kI16, le(int16_t{-300}));
    add("u32", GgufType::kU32, le(uint32_t{4000000000u}));
    add("i32", GgufType::kI32, le(int32_t{-70000}));
    add("u64", GgufType::kU64, le(uint64_t{1} << 40));
    add("i64", GgufType::kI64, le(-(int64_t{1} << 40)));
    add("huge", GgufType::kU64, le(~uint64_t{0}));
    add("f32", GgufType::kF32, le(1e-5f));
    add("f64", GgufType::kF64, le(0.25));
    add("nan", GgufType::kF32, le(std::numeric_limits<float>::quiet_NaN()));
    add("true", GgufType::kBool, "\x01");
    add("text", GgufType::kString, gguf_string("gpt2"));
    add("texts", GgufType::kArray,
        gguf_array(GgufType::kString, 3, gguf_string("a") + gguf_string("") + gguf_string("bc")));
    add("numbers", GgufType::kArray, gguf_array(GgufType::kI32, 2, le(int32_t{1}) + le(int32_t{-4})));
    add("bools", GgufType::kArray, gguf_array(GgufType::kBool, 2, std::string("\x01\x00", 2)));
    add("nothing", GgufType::kArray, gguf_array(GgufType::kString, 0, ""));
    file = std::make_unique<AlignedBytes>(gguf_file(parts));
    content = parse_gguf(file->bytes(), "f");
  }
  GgufParts parts;
  std::unique_ptr<AlignedBytes> file;
  GgufContent content;
};

TEST(GgufFields, reads_every_type) {
  const Values values;
  const GgufFields fields(values.content.metadata, "f");
  EXPECT_EQ(fields.integer("u8", 0, 255), 200);
  EXPECT_EQ(fields.integer("i8", -128, 0), -3);
  EXPECT_EQ(fields.integer("u16", 0, 65535), 60000);
  EXPECT_EQ(fields.integer("i16", -1000, 0), -300);
  EXPECT_EQ(fields.integer("u32", 0, INT64_MAX), 4000000000);
  EXPECT_EQ(fields.integer("i32", INT64_MIN, 0), -70000);
  EXPECT_EQ(fields.integer("u64", 0, INT64_MAX), int64_t{1} << 40);
  EXPECT_EQ(fields.integer("i64", INT64_MIN, 0), -(int64_t{1} << 40));
  EXPECT_EQ(fields.number("f32", 0, 1), double{1e-5f});
  EXPECT_EQ(fields.number("f64", 0, 1), 0.25);
  EXPECT_TRUE(fields.boolean("true"));
  EXPECT_EQ(fields.string("text"), "gpt2");
  EXPECT_THAT(fields.strings("texts"), ElementsAre("a", "", "bc"));
  EXPECT_THAT(fields.strings("nothing"), ElementsAre());
  EXPECT_THAT(fields.integers("numbers"), ElementsAre(1, -4));
  EXPECT_THAT(fields.booleans("bools"), ElementsAre(true, false));
}

TEST(GgufFields, refuses_what_is_missing_of_another_type_or_out_of_range) {
  const Values values;
  const GgufFields fields(values.content.metadata, "f");
  const auto refuses = [](const auto& read, const char* says) {
    expect_error([&] { static_cast<void>(read()); }, Code::kCorrupt, says);
  };
  refuses([&] { return fields.integer("none", 0, 1); }, "f: metadata key none is missing");
  refuses([&] { return fields.integer("u8", 0, 199); }, "u8: want an integer from 0 to 199, found u8 200");
  refuses([&] { return fields.integer("f32", 0, 1); }, "f32: want an integer from 0 to 1, found f32 1e-05");
  refuses([&] { return fields.integer("huge", 0, INT64_MAX); }, "found u64 18446744073709551615");
  refuses([&] { return fields.integer("numbers", 0, 1); }, "found an array of 2 i32");
  refuses([&] { return fields.number("nan", 0, 1); }, "nan: want a float from 0 to 1, found f32 nan");
  refuses([&] { return fields.number("u8", 0, 1); }, "found u8 200");
  refuses([&] { return fields.boolean("u8"); }, "want true or false, found u8 200");
  refuses([&] { return fields.string("true"); }, "want a string, found true");
  refuses([&] { return fields.string("texts"); }, "want a string, found an array of 3 string");
  refuses([&] { return fields.strings("text"); }, "want an array of strings, found the string \"gpt2\"");
  refuses([&] { return fields.strings("numbers"); }, "want an array of strings");
  refuses([&] { return fields.integers("bools"); }, "want an array of integers, found an array of 2 bool");
  refuses([&] { return fields.integers("u8"); }, "want an array of integers");
  refuses([&] { return fields.booleans("numbers"); }, "want an array of bools");
}

TEST(GgufWrite, what_is_written_is_read_back) {
  const test::ScratchDir dir;
  const std::vector<GgufEntry> metadata = {{"a.text", std::string("gpt-oss")},
                                           {"a.u16", uint16_t{3}},
                                           {"a.u32", uint32_t{4}},
                                           {"a.i32", int32_t{-5}},
                                           {"a.f32", 0.5f},
                                           {"a.bool", true},
                                           {"a.texts", std::vector<std::string>{"x", "yz"}},
                                           {"a.numbers", std::vector<int32_t>{1, 2, 3}}};
  const std::vector<TensorSpec> specs = {
      {"one", DType::kF32, {3}}, {"two", DType::kGgmlQ8, {2, 32}}, {"three", DType::kGgmlMxfp4, {1, 2, 64}}};
  write_gguf(dir / "f.gguf", {.metadata = metadata, .tensors = specs}, [](size_t idx, std::span<std::byte> bytes) {
    std::fill(bytes.begin(), bytes.end(), static_cast<std::byte>(idx + 1));
  });
  const MmapFile file(dir / "f.gguf");
  const GgufContent content = parse_gguf(file.bytes(), "f");
  const GgufFields fields(content.metadata, "f");
  EXPECT_EQ(content.metadata.size(), metadata.size());
  EXPECT_EQ(fields.string("a.text"), "gpt-oss");
  EXPECT_EQ(fields.integer("a.u16", 0, 9), 3);
  EXPECT_EQ(fields.integer("a.i32", -9, 9), -5);
  EXPECT_EQ(fields.number("a.f32", 0, 1), 0.5);
  EXPECT_TRUE(fields.boolean("a.bool"));
  EXPECT_THAT(fields.strings("a.texts"), ElementsAre("x", "yz"));
  EXPECT_THAT(fields.integers("a.numbers"), ElementsAre(1, 2, 3));
  ASSERT_EQ(content.tensors.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(content.tensors[i].name, specs[i].name);
    EXPECT_EQ(content.tensors[i].tensor.shape, specs[i].shape);
    EXPECT_THAT(content.tensors[i].tensor.bytes, testing::Each(static_cast<std::byte>(i + 1)));
  }
  EXPECT_EQ(content.tensors[2].tensor.bytes.size(), 4u * 17);
}

TEST(GgufWrite, a_failure_leaves_no_file) {
  const test::ScratchDir dir;
  const std::vector<TensorSpec> specs = {{"one", DType::kF32, {3}}};
  expect_error(
      [&] {
        write_gguf(dir / "f.gguf", {.tensors = specs},
                   [](size_t, std::span<std::byte>) { throw Error(Code::kDevice, "stop"); });
      },
      Code::kDevice, "stop");
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  expect_error([&] { write_gguf(dir / "none/f.gguf", {.tensors = specs}, {}); }, Code::kIo,
               "none/f.gguf.part: cannot create");
  const std::vector<TensorSpec> odd = {{"odd", DType::kGgmlQ8, {33}}};
  expect_error([&] { write_gguf(dir / "f.gguf", {.tensors = odd}, {}); }, Code::kCorrupt,
               "odd: want rows of whole blocks");
}

}  // namespace
}  // namespace nibble::checkpoint
