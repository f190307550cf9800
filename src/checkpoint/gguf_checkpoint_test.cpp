#include "checkpoint/gguf_checkpoint.h"

#include "checkpoint/gguf.h"
#include "checkpoint/testing/gguf.h"
#include "checkpoint/testing/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace nibble::checkpoint {
namespace {

using test::expect_error;
using test::gguf_file;
using test::gguf_key;
using test::gguf_string;
using test::gguf_tensor;
using test::GgufParts;
using test::le;
using test::ScratchDir;

// Part `no` of `count` holds one tensor, "t<no>"; the first one describes the model.
GgufParts part(uint16_t no, uint16_t count) {
  GgufParts parts{.tensors = {gguf_tensor(fmt::format("t{}", no), {8}, 0, 0)}, .data = std::string(32, 'd')};
  if (no == 0) parts.keys.push_back(gguf_key("general.name", GgufType::kString, gguf_string("split")));
  parts.keys.push_back(gguf_key("split.no", GgufType::kU16, le(no)));
  parts.keys.push_back(gguf_key("split.count", GgufType::kU16, le(count)));
  parts.keys.push_back(gguf_key("split.tensors.count", GgufType::kI32, le(int32_t{count})));
  return parts;
}

std::string name(int no, int count) { return gguf_part_path("m", no, count).string(); }

class Split : public testing::Test {
 protected:
  Split() {
    for (uint16_t i = 0; i < 3; ++i) dir.write(name(i, 3), gguf_file(part(i, 3)));
  }
  void refused(Code code, const std::string& says) const {
    expect_error([&] { static_cast<void>(GgufCheckpoint::open(dir / name(0, 3))); }, code, says);
  }
  ScratchDir dir;
};

TEST_F(Split, opens_from_any_part_or_the_directory) {
  for (const std::filesystem::path& path : {dir / name(0, 3), dir / name(1, 3), dir / name(2, 3), dir.path()}) {
    const GgufCheckpoint model = GgufCheckpoint::open(path);
    ASSERT_EQ(model.tensors().size(), 3u);
    EXPECT_EQ(model.tensors()[0].name, "t0");
    EXPECT_EQ(model.tensors()[2].name, "t2");
    EXPECT_EQ(model.tensors()[2].tensor.bytes[0], std::byte{'d'});
    EXPECT_EQ(model.paths()[1], dir / name(1, 3));
    EXPECT_EQ(model.total_bytes(), 96);
    EXPECT_EQ(GgufFields(model.metadata(), model.where()).string("general.name"), "split");
    EXPECT_EQ(model.where(), (dir / name(0, 3)).string());
  }
}

TEST_F(Split, a_missing_part_is_named) {
  std::filesystem::remove(dir / name(1, 3));
  refused(Code::kIo, "m-00002-of-00003.gguf: part 2 of 3 is not there");
  expect_error([&] { static_cast<void>(GgufCheckpoint::open(dir.path())); }, Code::kIo, "part 2 of 3 is not there");
  dir.write("other-00002-of-00003.gguf", gguf_file(part(1, 3)));
  expect_error([&] { static_cast<void>(GgufCheckpoint::open(dir.path())); }, Code::kInvalidRequest, "want one model");
}

TEST_F(Split, a_part_of_another_number_or_count_is_refused) {
  dir.write(name(1, 3), gguf_file(part(2, 3)));
  refused(Code::kCorrupt, "m-00002-of-00003.gguf: want part 2 of 3, found part 3 of 3");
  dir.write(name(1, 3), gguf_file(part(1, 4)));
  refused(Code::kCorrupt, "want part 2 of 3, found part 2 of 4");
  GgufParts whole = part(1, 3);
  whole.keys.clear();
  dir.write(name(1, 3), gguf_file(whole));
  refused(Code::kCorrupt, "want part 2 of 3, found part 1 of 1");
}

TEST_F(Split, numbers_beyond_the_count_are_refused) {
  dir.write(name(1, 3), gguf_file(part(3, 3)));
  refused(Code::kCorrupt, "split.no: want an integer from 0 to 2, found u16 3");
}

TEST_F(Split, the_number_of_tensors_must_be_the_first_parts) {
  GgufParts first = part(0, 3);
  first.keys.back() = gguf_key("split.tensors.count", GgufType::kI32, le(int32_t{4}));
  dir.write(name(0, 3), gguf_file(first));
  refused(Code::kCorrupt, "split.tensors.count: want the 3 tensors that the parts hold, found 4");
  first.keys.pop_back();
  dir.write(name(0, 3), gguf_file(first));
  refused(Code::kCorrupt, "metadata key split.tensors.count is missing");
}

TEST_F(Split, a_tensor_in_two_parts_is_refused) {
  GgufParts second = part(1, 3);
  second.tensors = {gguf_tensor("t0", {8}, 0, 0)};
  dir.write(name(1, 3), gguf_file(second));
  refused(Code::kCorrupt, "tensor t0 lies in two of the parts");
}

TEST_F(Split, another_part_may_only_repeat_what_the_first_says) {
  GgufParts first = part(0, 3), second = part(1, 3);
  first.keys.push_back(gguf_key("gpt-oss.block_count", GgufType::kU32, le(2u)));
  second.keys.push_back(first.keys.back());
  dir.write(name(0, 3), gguf_file(first));
  dir.write(name(1, 3), gguf_file(second));
  EXPECT_EQ(GgufCheckpoint::open(dir.path()).tensors().size(), 3u);
  second.keys.back() = gguf_key("gpt-oss.block_count", GgufType::kU32, le(3u));
  dir.write(name(1, 3), gguf_file(second));
  refused(Code::kCorrupt, "metadata key gpt-oss.block_count: want what the first part says, u32 2, found u32 3");
  dir.write(name(0, 3), gguf_file(part(0, 3)));
  refused(Code::kCorrupt, "want what the first part says, nothing, found u32 3");
}

TEST_F(Split, a_part_under_another_name_is_refused) {
  std::filesystem::rename(dir / name(0, 3), dir / "first.gguf");
  expect_error([&] { static_cast<void>(GgufCheckpoint::open(dir / "first.gguf")); }, Code::kCorrupt,
               "part 1 of 3: want a name that ends in -00001-of-00003.gguf");
}

TEST(GgufCheckpoint, a_directory_must_hold_one_model) {
  const ScratchDir dir;
  expect_error([&] { static_cast<void>(GgufCheckpoint::open(dir.path())); }, Code::kIo, "want .gguf files, found none");
  expect_error([&] { static_cast<void>(GgufCheckpoint::open(dir / "no.gguf")); }, Code::kIo, "no such file");
  EXPECT_FALSE(is_gguf(dir.path()));
  GgufParts whole = part(0, 1);
  dir.write("a.gguf", gguf_file(whole));
  EXPECT_TRUE(is_gguf(dir.path()));
  EXPECT_EQ(GgufCheckpoint::open(dir.path()).tensors().size(), 1u);
  dir.write("b.gguf", gguf_file(whole));
  expect_error([&] { static_cast<void>(GgufCheckpoint::open(dir.path())); }, Code::kInvalidRequest,
               "want one model, found 2 .gguf files");
}

TEST(GgufCheckpoint, is_told_from_safetensors_by_name_and_content) {
  const ScratchDir dir;
  EXPECT_TRUE(is_gguf(dir.write("damaged.gguf", "")));
  EXPECT_TRUE(is_gguf(dir.write("model", "GGUF....")));
  EXPECT_FALSE(is_gguf(dir.write("model.safetensors", "........")));
  EXPECT_FALSE(is_gguf(dir / "none.gguf"));
  dir.write("config.json", "{}");
  EXPECT_FALSE(is_gguf(dir.path()));
}

}  // namespace
}  // namespace nibble::checkpoint
