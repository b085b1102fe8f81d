#include "common/error.h"

#include "test.h"

TEST(check_names_values_in_its_message) {
  const int got = 3;
  EXPECT_THROW([&] { SRT_CHECK(got == 4, "want 4 rows, got ", got); }(), staticrt::InputError,
               "want 4 rows, got 3");
  EXPECT_THROW([&] { SRT_INTERNAL(false, "V2"); }(), staticrt::InternalError, "V2");
}
