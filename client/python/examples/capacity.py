"""How much memory a model's KV cache takes, and what a recipe saves: `kvstow plan` as a function."""

import kvstow


def main():
    plan = kvstow.plan(
        "llama-3.1-8b",
        recipe=["raw", "int8", "kvstow=6.0"],
        profile="sessions=500,turns=5,shared=2000,prompt=800,output=300,rate=0.2,think=30",
        size=["64GiB", "256GiB"],
    )
    print(f"{plan['bytes_per_token']['raw']} bytes a token")
    for point in plan["curve"][:: max(1, len(plan["curve"]) // 8)]:
        print(f"{point['gib']:8.1f} GiB: {point['hit_rate']:6.1%} of blocks are there")


if __name__ == "__main__":
    main()
