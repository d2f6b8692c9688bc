# Packages of the system. All are private to lockstep: no installed header names one.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)            # fmt::fmt-header-only
find_package(CLI11 REQUIRED)          # CLI11::CLI11
find_package(ZLIB REQUIRED)           # ZLIB::ZLIB
find_package(nlohmann_json REQUIRED)  # nlohmann_json::nlohmann_json

# Debian's xxHash has no CMake package. Headers only: its user defines XXH_INLINE_ALL before the
# include, so that its symbols stay inside.
find_path(LOCKSTEP_XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
add_library(lockstep_xxhash INTERFACE)
add_library(lockstep::xxhash ALIAS lockstep_xxhash)
target_include_directories(lockstep_xxhash SYSTEM INTERFACE "${LOCKSTEP_XXHASH_INCLUDE_DIR}")

if(LOCKSTEP_WITH_TESTS)
  find_package(GTest REQUIRED)
endif()
