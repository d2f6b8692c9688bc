# Compiler, flags, caches and job pools: everything that holds for the whole project.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

# Includes are for everyone. The options are for our own targets (LOCKSTEP_OWN), not for a program
# elsewhere that links lockstep::lockstep: its warnings are its own affair.
add_library(lockstep_options INTERFACE)
target_compile_features(lockstep_options INTERFACE cxx_std_20)
set(is_own $<BOOL:$<TARGET_PROPERTY:LOCKSTEP_OWN>>)
target_include_directories(lockstep_options INTERFACE "${PROJECT_SOURCE_DIR}/include"
                                                      $<${is_own}:${PROJECT_SOURCE_DIR}>)
set(own_options
    # No contraction: a fused multiply-add rounds once where two operations round twice, so the bits
    # would depend on the compiler and the CPU it compiles for. Nothing may add -ffast-math.
    -ffp-contract=off
    # -fPIC for programs too, not -fPIE: a precompiled header is valid only for equal code models.
    -fPIC
    # __FILE__ in messages reads src/tree/tree.cpp on every machine.
    "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/="
    -Wall -Wextra -Wpedantic -Wshadow)
if(LOCKSTEP_WERROR)
  list(APPEND own_options -Werror)
endif()
target_compile_options(lockstep_options INTERFACE "$<${is_own}:${own_options}>")

if(LOCKSTEP_SANITIZE)
  target_compile_definitions(lockstep_options INTERFACE LOCKSTEP_SANITIZED)
  target_compile_options(lockstep_options INTERFACE -fsanitize=${LOCKSTEP_SANITIZE}
                                                    -fno-sanitize-recover=all
                                                    -fno-omit-frame-pointer)
  target_link_options(lockstep_options INTERFACE -fsanitize=${LOCKSTEP_SANITIZE})
endif()

find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without this sloppiness ccache never has a hit for a file that uses a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      "${LOCKSTEP_CCACHE}")
endif()

# A file that includes LibTorch takes about 2 GB to compile, a link of its libraries less.
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
cmake_host_system_information(RESULT memory_mb QUERY TOTAL_PHYSICAL_MEMORY)
math(EXPR torch_jobs "${memory_mb} / 2048")
if(torch_jobs GREATER cores)
  set(torch_jobs ${cores})
elseif(torch_jobs LESS 1)
  set(torch_jobs 1)
endif()
set(LOCKSTEP_TORCH_JOBS ${torch_jobs} CACHE STRING "Files with LibTorch compiled at once (2 GB each)")
set_property(GLOBAL APPEND PROPERTY JOB_POOLS lockstep_torch=${LOCKSTEP_TORCH_JOBS} lockstep_link=2)
set(CMAKE_JOB_POOL_LINK lockstep_link)
