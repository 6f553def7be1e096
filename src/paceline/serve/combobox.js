// Lists that a user searches: the suggestions of a text in groups, by pointer and by keys (ARIA combobox with a listbox).
(function () {
  "use strict";
  for (const input of document.querySelectorAll("input[list]")) {
    const options = [...input.list.options].map(function (option) {
      return { value: option.value, remark: option.label === option.value ? "" : option.label, group: option.dataset.group || "" };
    });
    const list = document.createElement("div");
    let at = -1, shown = [];
    list.id = input.id + "-options";
    list.className = "options";
    list.hidden = true;
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", input.labels[0].textContent);
    input.removeAttribute("list");
    for (const [name, value] of [["role", "combobox"], ["aria-expanded", "false"], ["aria-autocomplete", "list"], ["aria-controls", list.id]]) {
      input.setAttribute(name, value);
    }
    const holder = document.createElement("div");
    holder.className = "combobox";
    input.replaceWith(holder);
    holder.append(input, list);

    function matches(words) {
      return options.filter(function (option) {
        const text = [option.value, option.remark, option.group].join(" ").toLowerCase();
        return words.every(function (word) { return text.includes(word); });
      });
    }
    function open(words) {
      list.replaceChildren();
      let group = null, place = list;
      shown = [];
      for (const option of matches(words)) {
        if (option.group && (!group || group.dataset.name !== option.group)) {
          group = document.createElement("div");
          group.dataset.name = option.group;
          group.setAttribute("role", "group");
          group.setAttribute("aria-label", option.group);
          const head = document.createElement("div");
          head.className = "group";
          head.setAttribute("aria-hidden", "true");
          head.textContent = option.group;
          group.append(head);
          list.append(group);
          place = group;
        }
        const line = document.createElement("div");
        line.id = list.id + "-" + shown.length;
        line.className = "option";
        line.setAttribute("role", "option");
        line.setAttribute("aria-selected", String(option.value === input.value));
        line.dataset.value = option.value;
        line.textContent = option.value;
        if (option.remark && option.remark !== option.group) {
          const remark = document.createElement("span");
          remark.textContent = option.remark;
          line.append(" ", remark);
        }
        place.append(line);
        shown.push(line);
      }
      at = -1;
      const visible = shown.length > 0;
      list.hidden = !visible;
      input.setAttribute("aria-expanded", String(visible));
      input.removeAttribute("aria-activedescendant");
      const now = shown.find(function (line) { return line.dataset.value === input.value; });
      if (now) { list.scrollTop = now.offsetTop - list.clientHeight / 2; }
    }
    function close() {
      list.hidden = true;
      input.setAttribute("aria-expanded", "false");
      input.removeAttribute("aria-activedescendant");
    }
    function point(next) {
      if (at >= 0 && shown[at]) { shown[at].classList.remove("pointed"); }
      at = Math.min(shown.length - 1, Math.max(0, next));
      shown[at].classList.add("pointed");
      shown[at].scrollIntoView({ block: "nearest" });
      input.setAttribute("aria-activedescendant", shown[at].id);
    }
    function take(line) {
      input.value = line.dataset.value;
      close();
      input.dispatchEvent(new Event("input", { bubbles: true }));
      input.dispatchEvent(new Event("change", { bubbles: true }));
    }
    input.addEventListener("input", function (event) {
      if (event.isTrusted) { open(input.value.trim().toLowerCase().split(/\s+/).filter(Boolean)); }
    });
    input.addEventListener("mousedown", function () { if (list.hidden) { open([]); } });
    input.addEventListener("focus", function () { input.select(); });
    input.addEventListener("blur", close);
    list.addEventListener("mousedown", function (event) {
      event.preventDefault(); // the text keeps the focus
      const line = event.target.closest(".option");
      if (line) { take(line); }
    });
    input.addEventListener("keydown", function (event) {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        if (list.hidden) { open([]); at = shown.findIndex(function (line) { return line.dataset.value === input.value; }) - step; }
        if (shown.length) { point(at + step); }
      } else if (event.key === "Enter" && !list.hidden && at >= 0) {
        event.preventDefault();
        take(shown[at]);
      } else if (event.key === "Escape" && !list.hidden) {
        event.preventDefault();
        close();
      } else if (event.key === "Enter") {
        close();
      }
    });
  }
})();
