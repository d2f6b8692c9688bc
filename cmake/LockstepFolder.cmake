# lockstep_add_folder(NAME
#   SOURCES a.cpp b.cpp               the library lockstep_NAME; none: headers only
#   [TESTS a_test.cpp ...]            one program NAME_test, each of its tests known to ctest
#   [TSAN_TESTS c_test.cpp ...]       the same, as NAME_tsan_test with the label tsan: ./dev check runs
#                                     these under the thread sanitizer too
#   [DEPENDS base tree ...]           folders before this one in LOCKSTEP_LAYERS
#   [LIBRARIES fmt::fmt-header-only]  packages; private, as all of them are
#   [TEST_LIBRARIES ...]              packages or targets that only the tests need
#   [TORCH])                          uses LibTorch: left out when LOCKSTEP_WITH_TORCH is off
#
# lockstep_add_program(NAME SOURCES main.cpp [DEPENDS ...] [LIBRARIES ...] [TORCH])
#   the program bin/NAME, from the same rules.
#
# Both do nothing for TORCH when LOCKSTEP_WITH_TORCH is off. Tests find programs and data through the
# environment: LOCKSTEP_TEST_BIN (the folder of the programs), LOCKSTEP_TEST_SOURCE (the checkout).

function(lockstep_add_folder name)
  cmake_parse_arguments(
    PARSE_ARGV 1 arg "TORCH" ""
    "SOURCES;TESTS;TSAN_TESTS;DEPENDS;LIBRARIES;TEST_LIBRARIES")
  lockstep_check_arguments(${name} "${arg_UNPARSED_ARGUMENTS}" "${arg_DEPENDS}" "${arg_TORCH}")
  if(arg_TORCH AND NOT LOCKSTEP_WITH_TORCH)
    return()
  endif()

  set(library lockstep_${name})
  if(arg_SOURCES)
    add_library(${library} STATIC ${arg_SOURCES})
    lockstep_set_up_target(${library} "${arg_DEPENDS}" "${arg_LIBRARIES}" "${arg_TORCH}")
  else()
    add_library(${library} INTERFACE)
    list(TRANSFORM arg_DEPENDS PREPEND lockstep_ OUTPUT_VARIABLE depends)
    target_link_libraries(${library} INTERFACE lockstep_options ${depends} ${arg_LIBRARIES})
  endif()
  set_target_properties(${library} PROPERTIES LOCKSTEP_TORCH "${arg_TORCH}")

  if(NOT LOCKSTEP_WITH_TESTS)
    return()
  endif()
  foreach(kind "" tsan)
    if(kind STREQUAL "")
      set(program ${name}_test)
      set(sources ${arg_TESTS})
    else()
      set(program ${name}_${kind}_test)
      string(TOUPPER ${kind}_TESTS list)
      set(sources ${arg_${list}})
    endif()
    if(NOT sources)
      continue()
    endif()
    add_executable(${program} ${sources})
    set(depends ${name} ${arg_DEPENDS})
    set(libraries ${arg_LIBRARIES} ${arg_TEST_LIBRARIES} GTest::gmock GTest::gtest_main)
    lockstep_set_up_target(${program} "${depends}" "${libraries}" "${arg_TORCH}")
    lockstep_add_tests(${program} "${kind}")
    if(kind STREQUAL "tsan")
      add_dependencies(lockstep_tsan_tests ${program})
    endif()
  endforeach()
endfunction()

function(lockstep_add_program name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "SOURCES;DEPENDS;LIBRARIES")
  lockstep_check_arguments(${name} "${arg_UNPARSED_ARGUMENTS}" "${arg_DEPENDS}" "${arg_TORCH}")
  if(arg_TORCH AND NOT LOCKSTEP_WITH_TORCH)
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  lockstep_set_up_target(${name} "${arg_DEPENDS}" "${arg_LIBRARIES}" "${arg_TORCH}")
endfunction()

# What every compiled target of ours has in common.
function(lockstep_set_up_target target depends libraries torch)
  set_target_properties(${target} PROPERTIES LOCKSTEP_OWN ON)
  list(TRANSFORM depends PREPEND lockstep_)
  target_link_libraries(${target} PUBLIC lockstep_options ${depends} PRIVATE ${libraries}
                                                                            Threads::Threads)
  if(torch)
    target_link_libraries(${target} PUBLIC lockstep_libtorch)
    target_precompile_headers(${target} REUSE_FROM lockstep_torch_pch)
    set_target_properties(${target} PROPERTIES JOB_POOL_COMPILE lockstep_torch)
  else()
    target_compile_options(${target} PRIVATE -Wconversion)
  endif()
endfunction()

# A folder may use only folders of lower layers, and LibTorch only if it says so.
function(lockstep_check_arguments name unparsed depends torch)
  if(unparsed)
    message(FATAL_ERROR "${name}: arguments not understood: ${unparsed}")
  endif()
  list(FIND LOCKSTEP_LAYERS ${name} own_layer)
  foreach(depend IN LISTS depends)
    list(FIND LOCKSTEP_LAYERS ${depend} layer)
    if(own_layer GREATER_EQUAL 0 AND layer GREATER_EQUAL own_layer)
      message(FATAL_ERROR "${name} must not depend on ${depend}: it is not a lower layer. Order, "
                          "lower first: ${LOCKSTEP_LAYERS}")
    endif()
    if(torch AND NOT LOCKSTEP_WITH_TORCH)
      continue()
    endif()
    if(NOT TARGET lockstep_${depend})
      message(FATAL_ERROR "${name} depends on ${depend}: there is no src/${depend}/CMakeLists.txt")
    endif()
    get_target_property(depend_torch lockstep_${depend} LOCKSTEP_TORCH)
    if(depend_torch AND NOT torch)
      message(FATAL_ERROR "${name} depends on ${depend}, which uses LibTorch: say TORCH, or do not")
    endif()
  endforeach()
endfunction()

# One ctest test per gtest test: each has its own process and its own time limit.
function(lockstep_add_tests program label)
  if(LOCKSTEP_TEST_LAUNCHER)
    set_target_properties(${program} PROPERTIES CROSSCOMPILING_EMULATOR "${LOCKSTEP_TEST_LAUNCHER}")
  endif()
  set(labels "")
  if(label)
    set(labels LABELS ${label})
  endif()
  # Two properties, because a list with ; in it does not survive gtest_discover_tests.
  gtest_discover_tests(
    ${program}
    TEST_PREFIX "${program}."
    DISCOVERY_TIMEOUT 60
    PROPERTIES ${labels}
               TIMEOUT 120
               ENVIRONMENT "LOCKSTEP_TEST_BIN=${PROJECT_BINARY_DIR}/bin"
               ENVIRONMENT_MODIFICATION "LOCKSTEP_TEST_SOURCE=set:${PROJECT_SOURCE_DIR}")
endfunction()
