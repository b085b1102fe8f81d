// Rules R: rounding, classes, segment sizes.
#include "allocator/device_fixture.h"

namespace staticrt::test {

TEST(R1_requests_round_up_to_512) {
  Device device(100 * MiB, kCompat);
  const std::pair<Bytes, Bytes> sizes[] = {{1, 512}, {511, 512}, {512, 512}, {513, 1024}, {1200, 1536}};
  for (const auto& [size, block] : sizes) EXPECT_EQ(device.block_size(device.alloc(size)), block);
}

TEST(R1_zero_bytes_are_null_and_leave_no_trace) {
  Device device(100 * MiB, kCompat);
  device.expect_ok(device.inspector().record_history({.on = true, .max_entries = 10}));
  EXPECT_EQ(device.alloc(0), kNullAddr);
  EXPECT_EQ(device.inspector().stats().of(Gauge::allocation).allocated, 0);
  EXPECT_EQ(device.inspector().snapshot().trace.size(), 1u);  // the snapshot itself
  EXPECT_EQ(device.reserved(), 0u);
}

TEST(R2_more_than_an_exbibyte_is_refused) {
  Device device(100 * MiB, kCompat);
  EXPECT_EQ(device.try_alloc(Bytes{1} << 60), kNullAddr);
  EXPECT(device.last().oom());
  EXPECT(device.last().text().find("Tried to allocate more than 1EB memory") != std::string::npos);
  EXPECT_EQ(device.counters().ooms, 0);
  EXPECT_EQ(device.reserved(), 0u);
  EXPECT_EQ(device.try_alloc((Bytes{1} << 60) - 1), kNullAddr);
  EXPECT(device.last().text().find("1EB") == std::string::npos);
}

TEST(R3_classes_split_at_one_mebibyte) {
  Device device(100 * MiB, kCompat);
  device.alloc(MiB);
  EXPECT_EQ(device.current(Gauge::allocation, 1), 1);
  EXPECT_EQ(device.current(Gauge::allocation, 2), 0);
  device.alloc(MiB + 1);
  EXPECT_EQ(device.current(Gauge::allocation, 1), 1);
  EXPECT_EQ(device.current(Gauge::allocation, 2), 1);
  EXPECT_EQ(device.current(Gauge::reserved_bytes, 1), int64_t{2} << 20);
  EXPECT_EQ(device.current(Gauge::reserved_bytes, 2), int64_t{20} << 20);
}

TEST(R3_class_is_of_the_rounded_size) {
  Device device(100 * MiB, "mode:compat,roundup_power2_divisions:2");
  device.alloc(MiB - 1000);  // rounds to 1 MiB
  EXPECT_EQ(device.current(Gauge::allocation, 1), 1);
}

TEST(R4_segment_sizes) {
  const std::pair<Bytes, Bytes> sizes[] = {{1, 2097152},         {1048576, 2097152},   {1048577, 20971520},
                                           {10485759, 10485760}, {10485760, 10485760}, {10485761, 12582912},
                                           {30 * MiB, 31457280}};
  for (const auto& [size, segment] : sizes) {
    Device device(200 * MiB, kCompat);
    device.alloc(size);
    EXPECT_EQ(device.reserved(), segment);
  }
}

TEST(R4_large_segment_size_is_an_option) {
  Device device(200 * MiB, "mode:compat,large_segment_size_mb:40");
  device.alloc(2 * MiB);
  EXPECT_EQ(device.reserved(), 40 * MiB);
}

TEST(R5_divisions_between_powers_of_two) {
  Device device(400 * MiB, "mode:compat,roundup_power2_divisions:4");
  const std::pair<Bytes, Bytes> sizes[] = {{1048577, 1310720}, {88080384, 100663296}, {1200, 1536},
                                           {2048, 2048},       {2049, 2560},          {4096, 4096}};
  for (const auto& [size, block] : sizes) EXPECT_EQ(device.block_size(device.alloc(size)), block);
  Config config = options("roundup_power2_divisions:4");
  EXPECT_EQ(round_request(10485761, config.rounding), 12582912u);
}

TEST(R6_table_of_divisions) {
  const Config config = options("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]");
  EXPECT_EQ(round_request(88080384, config.rounding), 92274688u);
  EXPECT_EQ(round_request(1048577, config.rounding), 1179648u);  // first entry also fills below
  EXPECT_EQ(round_request(200 * MiB + 1, config.rounding), 256 * MiB);
  EXPECT_EQ(round_request(3 * kGiB + 1, config.rounding), 3 * kGiB + 512);  // > : 1 is off
  for (const char* wrong :
       {"roundup_power2_divisions:[65:8]", "roundup_power2_divisions:[64:3]", "roundup_power2_divisions:3",
        "roundup_power2_divisions:[64:8", "roundup_power2_divisions:[64]"}) {
    Config parsed;
    const Status status = parse_config(wrong, "test", Config(), &parsed);
    EXPECT_EQ(status.code(), Code::invalid_argument);
    EXPECT(status.text().find("'roundup_power2_divisions'") != std::string::npos);
  }
}

TEST(R7_division_of_zero_is_the_next_power_of_two) {
  EXPECT_EQ(round_to_division(5, 8), 8u);
  EXPECT_EQ(round_to_division(3, 4), 4u);
  EXPECT_EQ(round_to_division(16, 64), 16u);
}

}  // namespace staticrt::test
