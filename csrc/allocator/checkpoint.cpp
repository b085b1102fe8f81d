#include "allocator/checkpoint.h"
